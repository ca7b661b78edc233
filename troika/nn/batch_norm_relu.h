// Batch norm and the ReLU behind it, in training on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

struct BatchNormCall {
  at::Tensor input;                      // [batch, channels, ...], not empty
  at::Tensor weight, bias;               // [channels], or undefined
  at::Tensor running_mean, running_var;  // [channels], written to, or undefined
  double momentum = 0;                   // of the running statistics
  double eps = 0;
};

// relu(batch_norm(input)) by the statistics of the batch, with LibTorch's bits, as one node of the
// graph whose backward pass is one operator, troika::batch_norm_relu_backward. May be
// differentiated once.
at::Tensor batch_norm_relu(const BatchNormCall& call);

}  // namespace troika::nn
