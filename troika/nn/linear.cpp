#include "troika/nn/linear.h"

#include "troika/compat/torch.h"
#include "troika/nn/dense.h"

namespace troika::nn {

Linear::Linear(int64_t in, int64_t out, double deviation)
    : LinearImpl(torch::nn::LinearOptions(in, out).bias(false)) {
  torch::nn::init::normal_(weight, 0.0, deviation);
}

at::Tensor Linear::forward(const at::Tensor& input) const {
  const at::Tensor x = hooked_input(input);
  if (!hooks_product()) {
    const auto late = late_weights(x, weight, bias);
    return with_branch(
        late ? dense_with_late_weights(x, weight.t(), bias, *late) : at::linear(x, weight, bias),
        x);
  }
  const at::Tensor product = hooked_product(with_branch(at::linear(x, weight), x));
  return bias.defined() ? product + bias.to(product.scalar_type()) : product;
}

at::Tensor Embedding::forward(const at::Tensor& indices) {
  return lookup_ ? lookup_(indices, weight) : EmbeddingImpl::forward(indices);
}

}  // namespace troika::nn
