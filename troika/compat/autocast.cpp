#include "troika/compat/autocast.h"

#include <ATen/autocast_mode.h>

#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

void set_autocast(c10::DeviceType device, const AutocastState& state) {
#if TROIKA_TORCH_VERSION >= 204
  at::autocast::set_autocast_dtype(device, state.type);
  at::autocast::set_autocast_enabled(device, state.enabled);
#else
  if (device == c10::DeviceType::CPU) {
    at::autocast::set_autocast_cpu_dtype(state.type);
    at::autocast::set_cpu_enabled(state.enabled);
  } else if (device == c10::DeviceType::PrivateUse1) {
    at::autocast::set_autocast_xpu_dtype(state.type);
    at::autocast::set_xpu_enabled(state.enabled);
  } else {
    at::autocast::set_autocast_gpu_dtype(state.type);
    at::autocast::set_enabled(state.enabled);
  }
#endif
}

}  // namespace

AutocastState autocast_state(c10::DeviceType device) {
#if TROIKA_TORCH_VERSION >= 204
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
#else
  if (device == c10::DeviceType::CPU) {
    return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  }
  if (device == c10::DeviceType::PrivateUse1) {
    return {at::autocast::is_xpu_enabled(), at::autocast::get_autocast_xpu_dtype()};
  }
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
#endif
}

at::ScalarType compute_type(const at::Tensor& tensor) {
  const auto autocast = autocast_state(tensor.device().type());
  const bool is_cast = autocast.enabled && tensor.scalar_type() != at::kDouble;
  return is_cast ? autocast.type : tensor.scalar_type();
}

AutocastGuard::AutocastGuard(c10::DeviceType device, const AutocastState& state)
    : device_(device), before_(autocast_state(device)) {
  // Throws, with nothing changed, if autocast does not support this dtype on this device.
  set_autocast(device, {state.enabled, state.enabled ? state.type : before_.type});
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(device_, before_);
}

}  // namespace troika::compat
