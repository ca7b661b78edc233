// GELU, as transformers of Hugging Face's GPT-2 have it.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

// LibTorch's gelu(input, "tanh"), by kernels of ours for float32 and bfloat16 on the CPU. May be
// differentiated once.
at::Tensor gelu_tanh(const at::Tensor& input);

}  // namespace troika::nn
