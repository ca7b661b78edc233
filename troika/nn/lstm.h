// A layer of long short-term memory (Hochreiter and Schmidhuber 1997).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace troika::nn {

// torch::nn::LSTM of one layer, one direction and batch_first, with its parameter names and initial
// values. Both states start at zero.
class Lstm : public torch::nn::Module {
 public:
  Lstm(int64_t input_width, int64_t hidden_width);

  // [batch, steps, input_width] -> the hidden state after each step, [batch, steps, hidden_width]
  at::Tensor forward(const at::Tensor& input) const;

 private:
  const int64_t hidden_width_;
  at::Tensor weight_ih_, weight_hh_;  // [4 hidden_width, ...]: input, forget, cell, output gate
  at::Tensor bias_ih_, bias_hh_;
};

}  // namespace troika::nn
