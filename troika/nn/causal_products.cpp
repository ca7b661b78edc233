#include "troika/nn/causal_products.h"

#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "troika/compat/autocast.h"
#include "troika/compat/autograd.h"
#include "troika/compat/compute_threads.h"
#include "troika/compat/torch.h"
#include "troika/nn/kernels/numbers.h"

namespace troika::nn {

namespace {

using torch::autograd::variable_list;

// Shorter blocks would skip more products but make each product slower.
constexpr int64_t kBlock = 128;

kernels::CausalRows rows_of(const at::Tensor& scores, int64_t first) {
  return {static_cast<size_t>(scores.size(1)), static_cast<size_t>(scores.size(2)),
          static_cast<size_t>(first)};
}

template <typename Work>
void for_rows(const at::Tensor& scores, const Work& work) {
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / scores.size(2));
  compat::parallel_for(0, scores.size(0) * scores.size(1), grain, [&](int64_t begin, int64_t end) {
    work(static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

// Registered with the dispatcher, so that compat::FakeTensorGuard can skip them.
at::Tensor& softmax_(at::Tensor& scores, int64_t first, double scale) {
  for_rows(scores, [&](size_t begin, size_t end) {
    std::vector<float> scratch(static_cast<size_t>(scores.size(2)));
    kernels::best().causal_softmax(kernels::number_of(scores), scores.data_ptr(),
                                   rows_of(scores, first), static_cast<float>(scale),
                                   scratch.data(), begin, end);
  });
  return scores;
}

at::Tensor& softmax_backward_(at::Tensor& gradients, const at::Tensor& weights, int64_t first,
                              double scale) {
  for_rows(gradients, [&](size_t begin, size_t end) {
    std::vector<float> scratch(static_cast<size_t>(gradients.size(2)));
    kernels::best().causal_softmax_backward(kernels::number_of(gradients), gradients.data_ptr(),
                                            weights.data_ptr(), rows_of(gradients, first),
                                            static_cast<float>(scale), scratch.data(), begin, end);
  });
  return gradients;
}

TORCH_LIBRARY_FRAGMENT(troika, library) {
  library.def("causal_softmax_(Tensor(a!) scores, int first, float scale) -> Tensor(a!)");
  library.def(
      "causal_softmax_backward_(Tensor(a!) gradients, Tensor weights, int first, float scale) -> "
      "Tensor(a!)");
  library.def("causal_products(Tensor qkv, int heads) -> Tensor[]");
  library.def("causal_products_backward(Tensor gradient, Tensor[] saved, int heads) -> Tensor");
}

TORCH_LIBRARY_IMPL(troika, CPU, library) {
  library.impl("causal_softmax_", softmax_);
  library.impl("causal_softmax_backward_", softmax_backward_);
}

void causal_softmax_(at::Tensor& scores, int64_t first, double scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("troika::causal_softmax_", "")
                             .typed<at::Tensor&(at::Tensor&, int64_t, double)>();
  op.call(scores, first, scale);
}

void causal_softmax_backward_(at::Tensor& gradients, const at::Tensor& weights, int64_t first,
                              double scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("troika::causal_softmax_backward_", "")
                             .typed<at::Tensor&(at::Tensor&, const at::Tensor&, int64_t, double)>();
  op.call(gradients, weights, first, scale);
}

at::Tensor transposed(const at::Tensor& matrices) {
  return matrices.transpose(1, 2);
}

// Returns the result; then queries, keys and values by head; then the weights of each block.
// Composed of other operators, so that hooks on these see them.
std::vector<at::Tensor> forward_of_products(const at::Tensor& qkv, int64_t heads) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  // Autocast would compute the products in another type than the saved tensors have.
  const compat::AutocastGuard in_own_type(c10::DeviceType::CPU, {});
  const int64_t batch = qkv.size(0), length = qkv.size(1), size = qkv.size(2) / (3 * heads);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const at::Tensor parts = qkv.view({batch, length, 3, heads, size})
                               .permute({2, 0, 3, 1, 4})
                               .reshape({3, batch * heads, length, size});
  const at::Tensor q = parts.select(0, 0), k = parts.select(0, 1), v = parts.select(0, 2);
  const at::Tensor result = at::empty({batch, length, heads, size}, qkv.options());
  std::vector<at::Tensor> made{result.view({batch, length, heads * size}), parts};
  for (int64_t begin = 0; begin < length; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, length);
    at::Tensor weights = at::bmm(q.slice(1, begin, end), transposed(k.slice(1, 0, end)));
    causal_softmax_(weights, begin, scale);
    const at::Tensor mixed = at::bmm(weights, v.slice(1, 0, end));
    result.slice(1, begin, end)
        .copy_(mixed.view({batch, heads, end - begin, size}).transpose(1, 2));
    made.push_back(weights);
  }
  return made;
}

// Returns the gradient of `qkv`. `saved` is the output of forward_of_products() without its first
// element.
at::Tensor backward_of_products(const at::Tensor& gradient, at::TensorList saved, int64_t heads) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const at::Tensor& parts = saved[0];
  const at::Tensor q = parts.select(0, 0), k = parts.select(0, 1), v = parts.select(0, 2);
  const int64_t batch = parts.size(1) / heads, length = parts.size(2), size = parts.size(3);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const at::Tensor mixed =
      gradient.view({batch, length, heads, size}).transpose(1, 2).reshape_as(q);
  const at::Tensor result = at::empty({batch, length, 3, heads, size}, parts.options());
  const auto put = [&](int64_t part, int64_t begin, const at::Tensor& of_part) {
    const int64_t count = of_part.size(1);
    result.select(2, part)
        .slice(1, begin, begin + count)
        .copy_(of_part.view({batch, heads, count, size}).transpose(1, 2));
  };
  at::Tensor of_k, of_v;
  // The last block involves all positions, so its gradients of k and v initialise the sums.
  for (int64_t begin = (length - 1) / kBlock * kBlock; begin >= 0; begin -= kBlock) {
    const int64_t end = std::min(begin + kBlock, length);
    const at::Tensor& weights = saved[static_cast<size_t>(1 + begin / kBlock)];
    const at::Tensor of_mixed = mixed.slice(1, begin, end);
    at::Tensor of_scores = at::bmm(of_mixed, transposed(v.slice(1, 0, end)));
    causal_softmax_backward_(of_scores, weights, begin, scale);
    put(0, begin, at::bmm(of_scores, k.slice(1, 0, end)));
    const at::Tensor more_k = at::bmm(transposed(of_scores), q.slice(1, begin, end));
    const at::Tensor more_v = at::bmm(transposed(weights), of_mixed);
    if (of_k.defined()) {
      of_k.slice(1, 0, end).add_(more_k);
      of_v.slice(1, 0, end).add_(more_v);
    } else {
      of_k = more_k;
      of_v = more_v;
    }
  }
  put(1, 0, of_k);
  put(2, 0, of_v);
  return result.view({batch, length, 3 * heads * size});
}

TORCH_LIBRARY_IMPL(troika, CompositeExplicitAutograd, library) {
  library.impl("causal_products", forward_of_products);
  library.impl("causal_products_backward", backward_of_products);
}

const auto& products_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("troika::causal_products", "")
                             .typed<std::vector<at::Tensor>(const at::Tensor&, int64_t)>();
  return op;
}

const auto& products_backward_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("troika::causal_products_backward", "")
                             .typed<at::Tensor(const at::Tensor&, at::TensorList, int64_t)>();
  return op;
}

// Not a torch::autograd::Function, because that runs the forward pass without gradient mode, and
// counters use gradient mode to tell recomputed operators.
class CausalProducts : public torch::autograd::Node {
 public:
  explicit CausalProducts(int64_t heads) : heads_(heads) {}

  void save(at::TensorList made) {
    for (const at::Tensor& tensor : made) saved_.emplace_back(tensor, /*is_output=*/false);
  }

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph("attention by products");
    std::vector<at::Tensor> made;
    for (const auto& saved : saved_) made.push_back(saved.unpack());
    return {products_backward_operator().call(gradients[0], made, heads_)};
  }

  void release_variables() override {
    for (auto& saved : saved_) saved.reset_data();
  }

 private:
  const int64_t heads_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

}  // namespace

bool takes_causal_products(const at::Tensor& qkv) {
  return kernels::takes(qkv);
}

at::Tensor causal_products(const at::Tensor& qkv, int64_t heads) {
  const auto made = products_operator().call(qkv.contiguous(), heads);
  at::Tensor result = made.front();
  if (!at::GradMode::is_enabled() || !qkv.requires_grad()) return result;
  const auto node = compat::make_node<CausalProducts>(heads);
  static_cast<CausalProducts&>(*node).save(at::TensorList(made).slice(1));
  node->set_next_edges(torch::autograd::collect_next_edges(qkv));
  compat::set_history(result, node);
  return result;
}

}  // namespace troika::nn
