// Tensors without memory (PyTorch's FakeTensorMode, with the CPU's own kernels where no rule says
// what they give): a model of any size runs forward and backward as far as its memory goes.
#pragma once

namespace troika::compat {

// While it lives, tensors that this thread makes on the CPU have addresses of their own, and memory
// only where something writes to it: reading gives zeros. Operators are not carried out where the
// shapes of their results follow from LibTorch's rules for the device `meta` or from a rule of
// ours; their results are tensors without memory, and operators in place leave theirs as it is. Any
// other operator runs on what is there. Allocations are those of a real run, and count in
// base/memory.h; scratch that kernels take beside their results counts for operators that run.
//
// Tensors may outlive the guard; writing to one then takes memory for all of it. Guards nest, and
// belong to one thread.
class [[nodiscard]] FakeTensorGuard {
 public:
  FakeTensorGuard();
  ~FakeTensorGuard();
  FakeTensorGuard(const FakeTensorGuard&) = delete;
  FakeTensorGuard& operator=(const FakeTensorGuard&) = delete;
};

}  // namespace troika::compat
