// A linear layer whose weight has the shape [in, out], as Hugging Face's Conv1D has it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace troika::nn {

// input * weight + bias: [..., in] of at least two dimensions, [in, out] and [out] give [..., out].
// Computes in autocast's type where autocast is on. Gives the bits of LibTorch's addmm and of its
// gradients, as one node of the graph whose backward pass is one operator, troika::dense_backward,
// instead of up to ten: between two operators that each go through more memory than the caches
// hold, a thread loses about 10 us. The weight may lie in either layout (weight_layout.h), which
// its gradient takes as well. May be differentiated once: a backward pass with create_graph throws
// Error(usage).
at::Tensor dense(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

// Hugging Face's Conv1D: dense() with parameters `weight` [in, out], drawn from
// N(0, deviation^2), and `bias` [out], which begins at 0.
class Conv1D : public torch::nn::Module {
 public:
  Conv1D(int64_t in, int64_t out, double deviation);

  // [..., in] -> [..., out]
  at::Tensor forward(const at::Tensor& input) const { return dense(input, weight_, bias_); }

  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace troika::nn
