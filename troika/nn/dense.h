// A linear layer with a weight of shape [in, out], like Hugging Face's Conv1D.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "troika/nn/hooked.h"

namespace troika::nn {

// Returns input * weight + bias: [..., in] (at least two dimensions), [in, out] and [out] give
// [..., out]. The bias may be undefined. Computes in autocast's type if autocast is on. Has the
// same bits as LibTorch's addmm and its gradients. It is one node of the graph whose backward pass
// is one operator, troika::dense_backward, instead of up to ten operators: between two operators
// that move more memory than the caches hold, a thread loses about 10 us. The weight may have
// either layout (weight_layout.h), and its gradient has the same one. Can be differentiated only
// once: a backward pass with create_graph throws Error(usage).
at::Tensor dense(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

// The same, but the gradients of `weight` and `bias` are computed by a node of their own with
// `late.sequence_number`: autograd's engine runs it after all nodes of higher numbers that it could
// run. With `late.input`, `input` is not kept; the backward pass starts to make it again before it
// computes the gradient of the input, and takes it for that of the weight.
at::Tensor dense_with_late_weights(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias, const LateWeights& late);

// Hugging Face's Conv1D: dense() with parameters `weight` [in, out], drawn from N(0, deviation^2),
// and `bias` [out], which starts at 0.
class Conv1D : public torch::nn::Module, public Hooked {
 public:
  Conv1D(int64_t in, int64_t out, double deviation);

  // [..., in] -> [..., out]
  at::Tensor forward(const at::Tensor& input) const;

  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace troika::nn
