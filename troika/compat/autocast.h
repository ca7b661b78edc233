// Autocast: LibTorch's own choice of a number type for each operator, in one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace troika::compat {

struct AutocastState {
  bool enabled = false;
  at::ScalarType type = at::ScalarType::BFloat16;  // of matrix products; no matter if not enabled

  bool operator==(const AutocastState&) const = default;
};

// This thread's state for tensors of a device, CPU or CUDA.
AutocastState autocast_state(c10::DeviceType device);

// The type in which autocast has a product of this tensor computed; its own where autocast is off,
// or leaves it alone, as it does float64.
at::ScalarType compute_type(const at::Tensor& tensor);

// Sets the state of this thread while it lives, then puts back the one before, whatever ends its
// scope. Guards nest; the casts of weights that autocast keeps are dropped when the outermost ends.
class [[nodiscard]] AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, const AutocastState& state);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const c10::DeviceType device_;
  const AutocastState before_;
};

}  // namespace troika::compat
