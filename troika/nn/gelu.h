// GELU as in Hugging Face's GPT-2.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

// Equals LibTorch's gelu(input, "tanh"), with kernels of our own for float32 and bfloat16 on the
// CPU. Can be differentiated only once.
at::Tensor gelu_tanh(const at::Tensor& input);

}  // namespace troika::nn
