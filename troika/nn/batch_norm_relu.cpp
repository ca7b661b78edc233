#include "troika/nn/batch_norm_relu.h"

#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Composed of LibTorch's operators, so that hooks on these operators see it.
ThreeTensors backward_of_norm_relu(const at::Tensor& gradient, const at::Tensor& output,
                                   const at::Tensor& input, const c10::optional<at::Tensor>& weight,
                                   const at::Tensor& mean, const at::Tensor& invstd, double eps,
                                   std::array<bool, 3> wanted) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  return at::native_batch_norm_backward(at::threshold_backward(gradient, output, 0), input, weight,
                                        /*running_mean=*/{}, /*running_var=*/{}, mean, invstd,
                                        /*train=*/true, eps, wanted);
}

TORCH_LIBRARY_FRAGMENT(troika, library) {
  library.def(
      "batch_norm_relu_backward(Tensor gradient, Tensor output, Tensor input, Tensor? weight, "
      "Tensor mean, Tensor invstd, float eps, bool[3] wanted) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(troika, CompositeExplicitAutograd, library) {
  library.impl("batch_norm_relu_backward", backward_of_norm_relu);
}

const auto& norm_relu_backward_operator() {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("troika::batch_norm_relu_backward", "")
          .typed<ThreeTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const c10::optional<at::Tensor>&, const at::Tensor&,
                              const at::Tensor&, double, std::array<bool, 3>)>();
  return op;
}

class BatchNormReluBackward : public torch::autograd::Node {
 public:
  explicit BatchNormReluBackward(const BatchNormCall& call)
      : Node(torch::autograd::collect_next_edges(call.input, call.weight, call.bias)),
        input_(call.input, /*is_output=*/false),
        eps_(call.eps) {
    if (call.weight.defined()) weight_.emplace(call.weight, /*is_output=*/false);
  }

  // Saves the output detached from the graph, since the graph would hold this node.
  void save(const at::Tensor& output, const at::Tensor& mean, const at::Tensor& invstd) {
    output_.emplace(output, /*is_output=*/false);
    mean_.emplace(mean, /*is_output=*/false);
    invstd_.emplace(invstd, /*is_output=*/false);
  }

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph("batch norm with ReLU on the CPU");
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const std::array<bool, 3> wanted{task_should_compute_output(0), task_should_compute_output(1),
                                     task_should_compute_output(2)};
    auto [of_input, of_weight, of_bias] = norm_relu_backward_operator().call(
        gradients[0], output_->unpack(), input_.unpack(),
        weight_ ? c10::make_optional(weight_->unpack()) : c10::nullopt, mean_->unpack(),
        invstd_->unpack(), eps_, wanted);
    return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
  }

  void release_variables() override {
    input_.reset_data();
    for (auto* saved : {&weight_, &output_, &mean_, &invstd_}) {
      if (*saved) (*saved)->reset_data();
    }
  }

 private:
  SavedVariable input_;
  std::optional<SavedVariable> weight_, output_, mean_, invstd_;
  const double eps_;
};

}  // namespace

at::Tensor batch_norm_relu(const BatchNormCall& call) {
  const auto node = compat::make_node<BatchNormReluBackward>(call);
  at::Tensor output, mean, invstd;
  {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    std::tie(output, mean, invstd) =
        at::native_batch_norm(call.input, call.weight, call.bias, call.running_mean,
                              call.running_var, /*training=*/true, call.momentum, call.eps);
    output.relu_();
  }
  static_cast<BatchNormReluBackward&>(*node).save(output.detach(), mean, invstd);
  compat::set_history(output, node);
  return output;
}

}  // namespace troika::nn
