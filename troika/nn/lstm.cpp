#include "troika/nn/lstm.h"

#include <cmath>
#include <tuple>

#include "troika/compat/torch.h"

namespace troika::nn {

Lstm::Lstm(int64_t input_width, int64_t hidden_width) : hidden_width_(hidden_width) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_width));
  const auto made = [&](const char* name, at::IntArrayRef sizes) {
    const at::Tensor parameter = register_parameter(name, torch::empty(sizes));
    torch::nn::init::uniform_(parameter, -bound, bound);
    return parameter;
  };
  weight_ih_ = made("weight_ih_l0", {4 * hidden_width, input_width});
  weight_hh_ = made("weight_hh_l0", {4 * hidden_width, hidden_width});
  bias_ih_ = made("bias_ih_l0", {4 * hidden_width});
  bias_hh_ = made("bias_hh_l0", {4 * hidden_width});
}

at::Tensor Lstm::forward(const at::Tensor& input) const {
  // Where autocast made the input bfloat16, the cell state stays in float32.
  const at::Tensor zeros = at::zeros({1, input.size(0), hidden_width_}, weight_hh_.options());
  return std::get<0>(at::lstm(input, {zeros, zeros}, {weight_ih_, weight_hh_, bias_ih_, bias_hh_},
                              /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0, is_training(),
                              /*bidirectional=*/false, /*batch_first=*/true));
}

}  // namespace troika::nn
