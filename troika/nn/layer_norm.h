// Layer normalisation (Ba et al. 2016, arXiv 1607.06450) in the type of its input.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>

namespace troika::nn {

// Returns norm.forward(input), in the type of `input`. On CPUs, LibTorch 1.13 takes 25 times as
// long in bfloat16 as in float32; there bfloat16 is computed in float32 and rounded once, which
// keeps a float32 copy of the input for the backward pass.
at::Tensor layer_norm(torch::nn::LayerNormImpl& norm, const at::Tensor& input);

}  // namespace troika::nn
