#include "troika/parallel/collective_node.h"

#include <utility>

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

using torch::autograd::variable_list;

class CollectiveNode : public torch::autograd::Node {
 public:
  CollectiveNode(OfTensor backward, const char* what)
      : backward_(std::move(backward)), what_(what) {}

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph(what_);
    if (!gradients[0].defined()) return {at::Tensor()};
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return {backward_(gradients[0])};
  }

 private:
  const OfTensor backward_;
  const char* const what_;
};

}  // namespace

at::Tensor with_gradient(const at::Tensor& x, const OfTensor& forward, OfTensor backward,
                         const char* what) {
  at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return forward(x);
  }();
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return result;
  const auto node = compat::make_node<CollectiveNode>(std::move(backward), what);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  compat::set_history(result, node);
  return result;
}

}  // namespace troika::parallel
