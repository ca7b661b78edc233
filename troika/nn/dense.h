// A linear layer whose weight is stored [in, out], as Hugging Face's Conv1D has it.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

// input * weight + bias: [..., in] of at least two dimensions, [in, out] and [out] give [..., out].
// Computes in autocast's type where autocast is on. Gives the bits of LibTorch's addmm and of its
// gradients, as one node of the graph whose backward pass is one operator, troika::dense_backward,
// instead of up to ten: between two operators that each go through more memory than the caches
// hold, a thread loses about 10 us. May be differentiated once: a backward pass with create_graph
// throws Error(usage).
at::Tensor dense(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace troika::nn
