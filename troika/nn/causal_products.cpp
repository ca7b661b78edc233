#include "troika/nn/causal_products.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "troika/compat/autocast.h"
#include "troika/compat/torch.h"
#include "troika/nn/kernels/numbers.h"

namespace troika::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Shorter blocks would save products, and make each slower.
constexpr int64_t kBlock = 128;

kernels::CausalRows rows_of(const at::Tensor& scores, int64_t first) {
  return {static_cast<size_t>(scores.size(1)), static_cast<size_t>(scores.size(2)),
          static_cast<size_t>(first)};
}

template <typename Work>
void for_rows(const at::Tensor& scores, const Work& work) {
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / scores.size(2));
  at::parallel_for(0, scores.size(0) * scores.size(1), grain, [&](int64_t begin, int64_t end) {
    work(static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

// Operators of the dispatcher, so that compat::FakeTensorGuard need not carry them out.
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

class CausalProducts : public torch::autograd::Function<CausalProducts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, int64_t heads) {
    // Autocast would give products another type than what they are saved with.
    const compat::AutocastGuard in_own_type(c10::DeviceType::CPU, {});
    const int64_t batch = qkv.size(0), length = qkv.size(1), size = qkv.size(2) / (3 * heads);
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    // Detached, because a view of what has a gradient would be saved as a leaf that has one.
    const at::Tensor parts = qkv.detach()
                                 .view({batch, length, 3, heads, size})
                                 .permute({2, 0, 3, 1, 4})
                                 .reshape({3, batch * heads, length, size});
    const at::Tensor q = parts.select(0, 0), k = parts.select(0, 1), v = parts.select(0, 2);
    const at::Tensor result = at::empty({batch, length, heads, size}, qkv.options());
    variable_list saved{parts};
    for (int64_t begin = 0; begin < length; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, length);
      at::Tensor weights = at::bmm(q.slice(1, begin, end), transposed(k.slice(1, 0, end)));
      causal_softmax_(weights, begin, scale);
      const at::Tensor mixed = at::bmm(weights, v.slice(1, 0, end));
      result.slice(1, begin, end)
          .copy_(mixed.view({batch, heads, end - begin, size}).transpose(1, 2));
      saved.push_back(weights);
    }
    context->save_for_backward(saved);
    context->saved_data["heads"] = heads;
    return result.view({batch, length, heads * size});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const int64_t heads = context->saved_data["heads"].toInt();
    const at::Tensor& parts = saved[0];
    const at::Tensor q = parts.select(0, 0), k = parts.select(0, 1), v = parts.select(0, 2);
    const int64_t batch = parts.size(1) / heads, length = parts.size(2), size = parts.size(3);
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    const at::Tensor mixed =
        gradients[0].view({batch, length, heads, size}).transpose(1, 2).reshape_as(q);
    const at::Tensor result = at::empty({batch, length, 3, heads, size}, parts.options());
    const auto put = [&](int64_t part, int64_t begin, const at::Tensor& gradient) {
      const int64_t count = gradient.size(1);
      result.select(2, part)
          .slice(1, begin, begin + count)
          .copy_(gradient.view({batch, heads, count, size}).transpose(1, 2));
    };
    at::Tensor of_k, of_v;
    // The last block has to do with all positions, so its gradients of k and v begin the sums.
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
    return {result.view({batch, length, 3 * heads * size}), at::Tensor()};
  }
};

}  // namespace

bool takes_causal_products(const at::Tensor& qkv) {
  return kernels::takes(qkv);
}

at::Tensor causal_products(const at::Tensor& qkv, int64_t heads) {
  return CausalProducts::apply(qkv.contiguous(), heads);
}

}  // namespace troika::nn
