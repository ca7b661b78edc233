#include "troika/nn/layer_norm.h"

#include "troika/compat/layer_norm.h"

namespace troika::nn {

at::Tensor layer_norm(torch::nn::LayerNormImpl& norm, const at::Tensor& input) {
  const auto type = input.scalar_type();
  if (compat::has_fast_layer_norm_in_16_bits() || !input.is_cpu() || c10::elementSize(type) != 2) {
    return norm.forward(input);
  }
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
  const auto& options = norm.options;
  return at::layer_norm(wide(input), options.normalized_shape(), wide(norm.weight), wide(norm.bias),
                        options.eps())
      .to(type);
}

}  // namespace troika::nn
