#include "troika/nn/dense.h"

#include <ATen/SequenceNumber.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <optional>
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

// Composed of LibTorch's operators, so that hooks on these operators see it. `input` may be
// undefined unless wanted[1].
Gradients backward_of_dense(const at::Tensor& gradient, const at::Tensor& input,
                            const at::Tensor& weight, at::ScalarType of_input,
                            at::ScalarType of_parameters, Wanted wanted) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const at::Tensor rows = gradient.reshape({-1, gradient.size(-1)});
  Gradients result;
  if (wanted[0]) {
    auto sizes = gradient.sizes().vec();
    sizes.back() = weight.size(0);
    std::get<0>(result) = at::mm(rows, weight.t()).to(of_input).view(sizes);
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

// A product whose factors are `left` and `right`: `input` and `weight` in the type of the product.
// They are saved before the product is computed: a recomputation stops after the last saved tensor,
// so it skips the product.
struct Product {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor left;
  at::Tensor right;
};

// Computes the gradients of those tensors that have an edge.
class DenseBackward : public torch::autograd::Node {
 public:
  DenseBackward(const Product& of, torch::autograd::edge_list&& edges)
      : DenseBackward(of, std::move(edges), at::sequence_number::get_and_increment()) {}
  // `remade` replaces the left factor.
  DenseBackward(const Product& of, torch::autograd::edge_list&& edges, uint64_t sequence_number,
                std::shared_ptr<RemadeInput> remade = nullptr)
      : Node(sequence_number, std::move(edges)),
        remade_(std::move(remade)),
        weight_(of.right, /*is_output=*/false),
        of_input_(of.input.scalar_type()),
        of_parameters_(of.weight.scalar_type()) {
    if (!next_edge(1).is_valid()) return;
    if (remade_) {
      remade_->add_user();
    } else {
      input_ = SavedVariable(of.left, /*is_output=*/false);
    }
  }

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph("nn::dense");
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const Wanted wanted{task_should_compute_output(0), task_should_compute_output(1),
                        task_should_compute_output(2)};
    const at::Tensor weight = weight_.unpack();
    at::Tensor input;
    if (wanted[1]) input = remade_ ? remade_->take().to(weight.scalar_type()) : input_.unpack();
    auto [of_input, of_weight, of_bias] = dense_backward_operator().call(
        gradients[0], input, weight, of_input_, of_parameters_, wanted);
    return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
  }

  void release_variables() override {
    input_.reset_data();
    remade_.reset();
    weight_.reset_data();
  }

 private:
  SavedVariable input_;  // if the gradient of the weight needs it
  std::shared_ptr<RemadeInput> remade_;
  SavedVariable weight_;
  const at::ScalarType of_input_;
  const at::ScalarType of_parameters_;
};

// Hands its gradient on to several nodes.
class Fork : public torch::autograd::Node {
 public:
  // Starts to make `remade` before these nodes run, if the second one does in this pass.
  Fork(torch::autograd::edge_list&& edges, std::shared_ptr<RemadeInput> remade)
      : Node(std::move(edges)), remade_(std::move(remade)) {}

  variable_list apply(variable_list&& gradients) override {
    if (remade_ && task_should_compute_output(1)) remade_->start();
    return variable_list(num_outputs(), gradients[0]);
  }
  void release_variables() override { remade_.reset(); }

 private:
  std::shared_ptr<RemadeInput> remade_;
};

// Returns `tensor` itself, with its graph, if it has this type; otherwise a detached copy.
at::Tensor as(const at::Tensor& tensor, at::ScalarType type) {
  if (!tensor.defined()) return tensor;
  return tensor.scalar_type() == type ? tensor : tensor.detach().to(type);
}

// Returns the product; with gradients, that of record(product, compute), which makes the nodes of
// the graph and then calls compute().
template <typename Record>
at::Tensor recorded(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                    const Record& record) {
  const auto type = compat::compute_type(input);
  const Product of{input, weight, bias, as(input, type), as(weight, type)};
  const at::Tensor added = as(bias, type);
  const auto compute = [&] {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    auto sizes = input.sizes().vec();
    sizes.back() = of.right.size(1);
    const at::Tensor rows = of.left.flatten(0, -2);
    return (added.defined() ? at::addmm(added, rows, of.right) : at::mm(rows, of.right))
        .view(sizes);
  };
  const bool needs_gradients =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  if (!needs_gradients) return compute();
  return record(of, compute);
}

}  // namespace

at::Tensor dense(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return recorded(input, weight, bias, [](const Product& of, const auto& compute) {
    const auto node = compat::make_node<DenseBackward>(
        of, torch::autograd::collect_next_edges(of.input, of.weight, of.bias));
    at::Tensor output = compute();
    compat::set_history(output, node);
    return output;
  });
}

at::Tensor dense_with_late_weights(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias, const LateWeights& late_weights) {
  return recorded(input, weight, bias, [&](const Product& of, const auto& compute) {
    const auto remade = weight.requires_grad() ? late_weights.input : nullptr;
    auto edges = torch::autograd::collect_next_edges(of.input, of.weight, of.bias);
    torch::autograd::edge_list of_input{edges[0], {}, {}}, of_weights{{}, edges[1], edges[2]};
    const auto early = compat::make_node<DenseBackward>(of, std::move(of_input));
    const auto late = compat::make_node<DenseBackward>(of, std::move(of_weights),
                                                       late_weights.sequence_number, remade);
    const auto fork =
        compat::make_node<Fork>(torch::autograd::edge_list{{early, 0}, {late, 0}}, remade);
    at::Tensor output = compute();
    early->add_input_metadata(output);
    late->add_input_metadata(output);
    compat::set_history(output, fork);
    return output;
  });
}

Conv1D::Conv1D(int64_t in, int64_t out, double deviation)
    : weight_(register_parameter("weight", torch::empty({in, out}).normal_(0.0, deviation))),
      bias_(register_parameter("bias", torch::zeros({out}))) {}

at::Tensor Conv1D::forward(const at::Tensor& input) const {
  const at::Tensor x = hooked_input(input);
  if (!hooks_product()) {
    const auto late = late_weights(x, weight_, bias_);
    return with_branch(
        late ? dense_with_late_weights(x, weight_, bias_, *late) : dense(x, weight_, bias_), x);
  }
  const at::Tensor product = hooked_product(with_branch(dense(x, weight_, {}), x));
  return product + bias_.to(product.scalar_type());
}

}  // namespace troika::nn
