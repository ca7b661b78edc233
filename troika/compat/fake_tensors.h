// Tensors without memory (like PyTorch's FakeTensorMode, but operators without a shape rule run the
// CPU's own kernels). A model of any size can run forward and backward to measure its memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace troika::compat {

// Notified of every operator under a FakeTensorGuard, in call order.
class FakeObserver {
 public:
  virtual ~FakeObserver() = default;
  // The operator was skipped: its arguments are unchanged.
  virtual void left_out(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) = 0;
  // The operator runs on the existing values, or its results are tensors without memory.
  virtual void ran(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) = 0;
};

// While this guard exists, tensors that this thread makes on the CPU have their own addresses, but
// use memory only where something writes to them; reading gives zeros. An operator is not run if
// LibTorch's rules for device `meta`, or a rule of this project, give the shapes of its results.
// Its results are then tensors without memory, and in-place operators leave their tensor unchanged.
// Any other operator runs on the existing values. Allocations are those of a real run, and are
// counted in base/memory.h. Scratch memory of kernels is counted only for operators that run.
//
// Tensors may outlive the guard; writing to one then uses memory for all of it. Guards nest. A
// guard applies to one thread.
class [[nodiscard]] FakeTensorGuard {
 public:
  FakeTensorGuard() : FakeTensorGuard(nullptr) {}
  // With an observer, which must outlive the guard, tensors are not counted. The guard must be the
  // outermost.
  explicit FakeTensorGuard(FakeObserver* observer);
  ~FakeTensorGuard();
  FakeTensorGuard(const FakeTensorGuard&) = delete;
  FakeTensorGuard& operator=(const FakeTensorGuard&) = delete;
};

}  // namespace troika::compat
