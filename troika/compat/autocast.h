// Autocast of one thread: LibTorch chooses the dtype for each operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace troika::compat {

struct AutocastState {
  bool enabled = false;
  at::ScalarType type = at::ScalarType::BFloat16;  // of matrix products; meaningless if not enabled

  bool operator==(const AutocastState&) const = default;
};

// Returns this thread's state for tensors on the CPU, CUDA or PrivateUse1. LibTorch 1.13 has no
// autocast for PrivateUse1; there, PrivateUse1 has the state of XPU, and a device of this type that
// supports autocast gives its tensors the dispatch key AutocastXPU.
AutocastState autocast_state(c10::DeviceType device);

// Returns the dtype in which autocast computes a matrix product of this tensor: the tensor's own if
// autocast is off or does not cast it, as for float64.
at::ScalarType compute_type(const at::Tensor& tensor);

// Sets this thread's state, and restores the previous state at the end of its scope. Guards nest;
// autocast's cached casts of weights are dropped when the outermost guard ends.
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
