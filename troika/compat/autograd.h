// LibTorch's autograd machinery as this project uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::autograd {
struct Node;
}

namespace troika::compat {

// Calls `ready` on the thread that runs the backward pass, each time the gradient of `parameter` (a
// leaf that requires one) has been accumulated into its `.grad`. The hook ends with this object.
class GradientHook {
 public:
  GradientHook(const at::Tensor& parameter, std::function<void()> ready);
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  // Holding the accumulator keeps it, and with it the hook, from being made anew for each graph.
  std::shared_ptr<torch::autograd::Node> accumulator_;
  uintptr_t key_;
};

}  // namespace troika::compat
