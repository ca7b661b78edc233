// The parts of LibTorch's autograd that this project uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace troika::compat {

// Owns a node of a graph: a std::shared_ptr in LibTorch 1.13, a c10::intrusive_ptr in later
// versions (2.15).
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

// Makes a node of class N, defined by this project.
template <typename N, typename... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // LibTorch's own deleter, found by argument-dependent lookup: deletes chains of nodes without
    // recursion.
    return NodePointer(new N(std::forward<Arguments>(arguments)...),
                       [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  }
}

// Makes `output` the next output of `node`, a node defined by this project. The node is later
// called with one gradient for each call of this function. The gradient of a tensor whose dtype is
// not differentiable is undefined.
void set_history(at::Tensor& output, const NodePointer& node);

// For nodes that support first derivatives only: throws Error(usage) in a backward pass with
// create_graph, which would silently omit the second derivatives of `what`.
void refuse_create_graph(const char* what);

// Calls `ready` on the thread that runs the backward pass, each time the gradient of `parameter` (a
// leaf that requires grad) has been accumulated into its `.grad`. Destroying this object removes
// the hook.
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
