// Root mean square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467), and the gate of
// SwiGLU (Shazeer 2020, arXiv 2002.05202): the layers of Llama that store few activations here.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace troika::nn {

// Returns x / sqrt(mean of x^2 over the last dimension + eps), computed in at least float32 and
// rounded to the type of `x`, times `weight`, [width]. Keeps `x` and one number per row for the
// backward pass. Can be differentiated only once.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Returns silu(gate) * up of equal shapes. Keeps only its arguments for the backward pass. Can be
// differentiated only once.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// rms_norm() with a parameter `weight`, which starts at 1.
class RmsNorm : public torch::nn::Module {
 public:
  RmsNorm(int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x) const { return rms_norm(x, weight_, eps_); }

 private:
  at::Tensor weight_;
  double eps_;
};

}  // namespace troika::nn
