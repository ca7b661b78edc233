// LibTorch's autograd machinery as this project uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::autograd {
struct Node;
}

namespace troika::compat {

// Makes `output` what `node` gives next, for nodes of our own: it is called with as many gradients
// as there were calls of this. The gradient of a tensor that is not of numbers with a fraction is
// undefined.
void set_history(at::Tensor& output, const std::shared_ptr<torch::autograd::Node>& node);

// Calls `ready` on the thread that runs the backward pass, each time the gradient of `parameter` (a
// leaf that requires one) has been accumulated into its `.grad`. The hook ends with this object.
class GradientHook {
 public:
  GradientHook(const at::Tensor& parameter, std::function<void()> ready);
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  struct Registration;
  std::unique_ptr<Registration> registration_;
};

}  // namespace troika::compat
