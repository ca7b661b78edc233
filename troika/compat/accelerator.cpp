#include "troika/compat/accelerator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>
#include <utility>

#include "troika/compat/module_members.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

std::map<c10::DeviceType, std::function<at::Generator(int)>>& generators() {
  static std::map<c10::DeviceType, std::function<at::Generator(int)>> result;
  return result;
}

// Like Tensor::set_data(), whose check does not accept PrivateUse1 as a device with dense tensors.
void replace_data(const at::Tensor& tensor, const at::Tensor& with) {
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::lock_guard lock(meta->mutex_);
    meta->grad_accumulator_.reset();
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(with.getIntrusivePtr());
}

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
