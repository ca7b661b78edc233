#include "troika/compat/accelerator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>
#include <utility>

#include "troika/compat/module_members.h"
#include "troika/compat/torch.h"

#if TROIKA_TORCH_VERSION >= 206
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#endif

namespace troika::compat {

namespace {

std::map<c10::DeviceType, std::function<at::Generator(int)>>& generators() {
  static std::map<c10::DeviceType, std::function<at::Generator(int)>> result;
  return result;
}

#if TROIKA_TORCH_VERSION >= 206
// The functions that LibTorch needs for a device of type PrivateUse1 besides its guard. LibTorch
// keeps the object until the process ends.
class PrivateDeviceHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return guard()->deviceCount(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { guard()->setDevice(at(index)); }
  c10::DeviceIndex getCurrentDevice() const override { return guard()->getDevice().index(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return guard()->exchangeDevice(at(index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    const std::lock_guard lock(mutex_);
    const auto own = index < 0 ? getCurrentDevice() : index;
    auto& generator = known_[own];
    if (!generator.defined()) generator = generators().at(c10::kPrivateUse1)(own);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return getDefaultGenerator(index).clone();
  }

 private:
  static const c10::impl::DeviceGuardImplInterface* guard() {
    return c10::impl::getDeviceGuardImpl(c10::kPrivateUse1);
  }
  static c10::Device at(c10::DeviceIndex index) { return {c10::kPrivateUse1, index}; }

  mutable std::mutex mutex_;
  mutable std::map<c10::DeviceIndex, at::Generator> known_;
};
#endif

}  // namespace

c10::DeviceType accelerator_type() {
  return c10::impl::hasDeviceGuardImpl(c10::kPrivateUse1) ? c10::kPrivateUse1 : c10::kCUDA;
}

int accelerator_count() {
  const auto type = accelerator_type();
  if (type == c10::kCUDA) return static_cast<int>(torch::cuda::device_count());
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

at::Generator default_generator(c10::Device device) {
  const auto found = generators().find(device.type());
  if (found != generators().end()) return found->second(device.index());
  return at::globalContext().defaultGenerator(device);
}

void set_default_generators(c10::DeviceType type, std::function<at::Generator(int)> of_device) {
  generators()[type] = std::move(of_device);
#if TROIKA_TORCH_VERSION >= 206
  if (type != c10::kPrivateUse1) return;
  at::RegisterPrivateUse1HooksInterface(new PrivateDeviceHooks);
  // With a name, LibTorch prefers this device where it is built for CUDA as well.
  c10::register_privateuse1_backend("privateuseone");
#endif
}

void replace_data(const at::Tensor& tensor, const at::Tensor& with) {
  if (with.device().type() != c10::kPrivateUse1) return tensor.set_data(with);
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::lock_guard lock(meta->mutex_);
    meta->grad_accumulator_.reset();
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(with.getIntrusivePtr());
}

void move_module(torch::nn::Module& module, c10::Device device, c10::ScalarType type) {
  if (device.type() != c10::kPrivateUse1) return module.to(device, type);
  const at::NoGradGuard no_grad;
  for_each_member(module, [&](const ModuleMember& member) {
    if (!member.tensor.defined() || member.tensor.device() == device) return;
    const auto own = member.tensor.scalar_type();
    replace_data(member.tensor,
                 member.tensor.detach().to(device, at::isFloatingType(own) ? type : own));
  });
}

void manual_seed(uint64_t seed) {
  torch::manual_seed(seed);
  for (const auto& [type, of_device] : generators()) {
    for (int i = 0; i < c10::impl::getDeviceGuardImpl(type)->deviceCount(); ++i) {
      at::Generator generator = of_device(i);
      const std::lock_guard lock(generator.mutex());
      generator.set_current_seed(seed);
    }
  }
}

c10::TensorOptions staging_options(const at::Tensor& tensor) {
  return tensor.options().requires_grad(false).device(at::kCPU).pinned_memory(tensor.is_cuda());
}

}  // namespace troika::compat
