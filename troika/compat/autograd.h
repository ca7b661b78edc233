// LibTorch's autograd machinery as this project uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace troika::compat {

// Owns a node of a graph: a std::shared_ptr in LibTorch 1.13, a c10::intrusive_ptr by 2.15.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

// Makes a node of a class N of our own.
template <typename N, typename... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // LibTorch's own way, found by its argument: chains of nodes end without recursion.
    return NodePointer(new N(std::forward<Arguments>(arguments)...),
                       [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  }
}

// Makes `output` what `node` gives next, for nodes of our own: it is called with as many gradients
// as there were calls of this. The gradient of a tensor that is not of numbers with a fraction is
// undefined.
void set_history(at::Tensor& output, const NodePointer& node);

// For nodes that may be differentiated once: throws Error(usage) in a backward pass with
// create_graph, which would leave out the second derivatives of `what` without a word.
void refuse_create_graph(const char* what);

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
