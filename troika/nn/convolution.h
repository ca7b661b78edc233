// LibTorch's convolution of images, with hooks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "troika/nn/hooked.h"

namespace troika::nn {

// torch::nn::Conv2d: its parameters `weight` [out, in / groups, rows, columns] and `bias` [out],
// drawn in the same way.
class Conv2dImpl : public torch::nn::Conv2dImpl, public Hooked {
 public:
  // Throws Error(usage) for a padding mode other than zeros.
  explicit Conv2dImpl(const torch::nn::Conv2dOptions& options);

  // [batch, in, rows, columns] -> [batch, out, ...]
  at::Tensor forward(const at::Tensor& input);
  // The weight, the bias and the inputs are those of some groups from now on: of this number.
  void use_groups(int64_t groups) { options.groups(groups); }
};
TORCH_MODULE(Conv2d);

}  // namespace troika::nn
