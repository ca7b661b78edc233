#include "troika/nn/dense.h"

#include <torch/library.h>

#include <array>
#include <tuple>
#include <utility>

#include "troika/compat/autocast.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Wanted = std::array<bool, 3>;

bool is_out_in(const at::Tensor& weight) {
  return !weight.is_contiguous() && weight.t().is_contiguous();
}

// Composed of LibTorch's operators, so that hooks on these operators see it.
Gradients backward_of_dense(const at::Tensor& gradient, const at::Tensor& input,
                            const at::Tensor& weight, at::ScalarType of_input,
                            at::ScalarType of_parameters, Wanted wanted) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const at::Tensor rows = gradient.reshape({-1, gradient.size(-1)});
  Gradients result;
  if (wanted[0]) {
    std::get<0>(result) = at::mm(rows, weight.t()).to(of_input).view(input.sizes());
  }
  if (wanted[1]) {
    const at::Tensor left = input.flatten(0, -2);
    std::get<1>(result) = is_out_in(weight) ? at::mm(rows.t(), left).to(of_parameters).t()
                                            : at::mm(left.t(), rows).to(of_parameters);
  }
  if (wanted[2]) std::get<2>(result) = rows.sum(0).to(of_parameters);
  return result;
}

TORCH_LIBRARY_FRAGMENT(troika, library) {
  library.def(
      "dense_backward(Tensor gradient, Tensor input, Tensor weight, ScalarType of_input, "
      "ScalarType of_parameters, bool[3] wanted) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(troika, CompositeExplicitAutograd, library) {
  library.impl("dense_backward", backward_of_dense);
}

const auto& dense_backward_operator() {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("troika::dense_backward", "")
          .typed<Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::ScalarType,
                           at::ScalarType, Wanted)>();
  return op;
}

class DenseBackward : public torch::autograd::Node {
 public:
  // `left` and `right` are `input` and `weight` in the type of the product. They are saved before
  // the product is computed: a recomputation stops after the last saved tensor, so it skips the
  // product.
  DenseBackward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                const at::Tensor& left, const at::Tensor& right)
      : Node(torch::autograd::collect_next_edges(input, weight, bias)),
        input_(left, /*is_output=*/false),
        weight_(right, /*is_output=*/false),
        of_input_(input.scalar_type()),
        of_parameters_(weight.scalar_type()) {}

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph("nn::dense");
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const Wanted wanted{task_should_compute_output(0), task_should_compute_output(1),
                        task_should_compute_output(2)};
    auto [of_input, of_weight, of_bias] = dense_backward_operator().call(
        gradients[0], input_.unpack(), weight_.unpack(), of_input_, of_parameters_, wanted);
    return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
  }

  void release_variables() override {
    input_.reset_data();
    weight_.reset_data();
  }

 private:
  SavedVariable input_;
  SavedVariable weight_;
  const at::ScalarType of_input_;
  const at::ScalarType of_parameters_;
};

// Returns `tensor` itself, with its graph, if it has this type; otherwise a detached copy.
at::Tensor as(const at::Tensor& tensor, at::ScalarType type) {
  if (!tensor.defined()) return tensor;
  return tensor.scalar_type() == type ? tensor : tensor.detach().to(type);
}

}  // namespace

at::Tensor dense(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto type = compat::compute_type(input);
  const at::Tensor left = as(input, type), right = as(weight, type), added = as(bias, type);
  const auto compute = [&] {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    auto sizes = input.sizes().vec();
    sizes.back() = right.size(1);
    const at::Tensor rows = left.flatten(0, -2);
    return (added.defined() ? at::addmm(added, rows, right) : at::mm(rows, right)).view(sizes);
  };
  const bool needs_gradients =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  if (!needs_gradients) return compute();
  const auto node = compat::make_node<DenseBackward>(input, weight, bias, left, right);
  at::Tensor output = compute();
  compat::set_history(output, node);
  return output;
}

Conv1D::Conv1D(int64_t in, int64_t out, double deviation)
    : weight_(register_parameter("weight", torch::empty({in, out}).normal_(0.0, deviation))),
      bias_(register_parameter("bias", torch::zeros({out}))) {}

at::Tensor Conv1D::forward(const at::Tensor& input) const {
  const at::Tensor x = hooked_input(input);
  if (!hooks_product()) return with_branch(dense(x, weight_, bias_), x);
  const at::Tensor product = hooked_product(with_branch(dense(x, weight_, {}), x));
  return product + bias_.to(product.scalar_type());
}

}  // namespace troika::nn
