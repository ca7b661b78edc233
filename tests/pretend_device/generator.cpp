#include "tests/pretend_device/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <memory>
#include <mutex>

#include "tests/pretend_device/clock.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"

namespace troika::pretend {

namespace {

struct DeviceGenerator : c10::GeneratorImpl {
  DeviceGenerator(int device, at::Generator draws)
      : GeneratorImpl({c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        draws(std::move(draws)) {}

  void set_current_seed(uint64_t seed) override { draws.set_current_seed(seed); }
  uint64_t current_seed() const override { return draws.current_seed(); }
  uint64_t seed() override { return draws.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    draws.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return draws.unsafeGetGeneratorImpl()->get_state();
  }
#if TROIKA_TORCH_VERSION >= 200
  void set_offset(uint64_t) override {
    TORCH_CHECK(false, "pretend device: no offsets");
  }
  uint64_t get_offset() const override {
    TORCH_CHECK(false, "pretend device: no offsets");
  }
#endif
  GeneratorImpl* clone_impl() const override {
    return new DeviceGenerator(device().index(), draws.clone());
  }

  at::Generator draws;
};

[[maybe_unused]] const bool registered = [] {
  compat::set_default_generators(c10::kPrivateUse1, default_generator);
  return true;
}();

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* const generators = [] {
    auto* result = new std::array<at::Generator, kDevices>;
    for (int i = 0; i < kDevices; ++i) {
      (*result)[static_cast<size_t>(i)] =
          at::make_generator<DeviceGenerator>(i, at::detail::createCPUGenerator());
    }
    return result;
  }();
  return (*generators)[static_cast<size_t>(device)];
}

at::Generator cpu_draws_of(const at::Generator& generator) {
  return static_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->draws;
}

}  // namespace troika::pretend
