// Batch norm followed by ReLU, in training on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

struct BatchNormCall {
  at::Tensor input;                      // [batch, channels, ...], not empty
  at::Tensor weight, bias;               // [channels], or undefined
  at::Tensor running_mean, running_var;  // [channels], updated; or undefined
  double momentum = 0;                   // for the running statistics
  double eps = 0;
};

// Returns relu(batch_norm(input)) with the statistics of the batch and the same bits as LibTorch.
// It is one node of the graph, whose backward pass is one operator,
// troika::batch_norm_relu_backward. Can be differentiated only once.
at::Tensor batch_norm_relu(const BatchNormCall& call);

}  // namespace troika::nn
