// Helpers of the image models: convolutions, their initialisation, input checks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "troika/nn/batch_norm.h"
#include "troika/nn/convolution.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

// A convolution without bias, for use before a batch norm, with padding kernel / 2: at stride 1 the
// image keeps its size.
Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1);

// Returns relu(norm(conv(input))) in a new tensor; does not modify the input.
at::Tensor conv_norm_relu(Conv2dImpl& conv, BatchNormImpl& norm, const at::Tensor& input);

// Initialises every convolution below `module` from N(0, 2 / (out_channels * kernel area)), with
// bias zero: the "fan out" mode of He et al. 2015, as in torchvision's ResNet and VGG.
void init_convolutions(torch::nn::Module& module);

// Throws Error unless the batch is [batch, channels, rows, columns].
void check_images(const at::Tensor& input, const ModelOptions& options);

// Throws Error naming the model if `value` is below `least`.
void require_at_least(const ModelOptions& options, const char* option, int64_t value,
                      int64_t least);

// Throws Error if dropout is set, for a model that has none.
void refuse_dropout(const ModelOptions& options);

}  // namespace troika::nn
