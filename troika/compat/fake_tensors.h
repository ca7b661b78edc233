// Tensors without memory (PyTorch's FakeTensorMode, with the CPU's own kernels where no rule says
// what they give): a model of any size runs forward and backward as far as its memory goes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace troika::compat {

// Told of every operator under a FakeTensorGuard, in the order of their calls.
class FakeObserver {
 public:
  virtual ~FakeObserver() = default;
  // It was not carried out: its arguments are as they were.
  virtual void left_out(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) = 0;
  // It runs on what is there, or its results are tensors without memory.
  virtual void ran(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) = 0;
};

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
  FakeTensorGuard() : FakeTensorGuard(nullptr) {}
  // With an observer, which must outlive it, tensors do not count. It must be the outermost guard.
  explicit FakeTensorGuard(FakeObserver* observer);
  ~FakeTensorGuard();
  FakeTensorGuard(const FakeTensorGuard&) = delete;
  FakeTensorGuard& operator=(const FakeTensorGuard&) = delete;
};

}  // namespace troika::compat
