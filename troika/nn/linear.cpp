#include "troika/nn/linear.h"

#include "troika/compat/torch.h"

namespace troika::nn {

Linear::Linear(int64_t in, int64_t out, double deviation)
    : LinearImpl(torch::nn::LinearOptions(in, out).bias(false)) {
  torch::nn::init::normal_(weight, 0.0, deviation);
}

at::Tensor Linear::forward(const at::Tensor& input) const {
  if (!hooks_product()) return at::linear(hooked_input(input), weight, bias);
  const at::Tensor product = hooked_product(at::linear(hooked_input(input), weight));
  return bias.defined() ? product + bias.to(product.scalar_type()) : product;
}

at::Tensor Embedding::forward(const at::Tensor& indices) {
  return lookup_ ? lookup_(indices, weight) : EmbeddingImpl::forward(indices);
}

}  // namespace troika::nn
