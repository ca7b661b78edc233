// Optimizer steps on a device's tensors, by LibTorch's operators on lists of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "troika/optim/kernels/kernels.h"

namespace troika::optim {

// Parameters with the same hyperparameters and step count, their gradients, and their states
// ParameterSpan::first and ParameterSpan::second if the method has them. All tensors are on one
// device; gradients and states have the parameters' shapes and strides.
struct DeviceTensors {
  std::vector<at::Tensor> parameters, gradients, first, second;
};

// Do the same as the kernels of these methods (kernels.h), up to rounding. Everything is queued on
// the device's current stream; the host does not block. Gradients are not modified.
void step_on_device(const DeviceTensors& tensors, const kernels::Sgd& how);
void step_on_device(const DeviceTensors& tensors, const kernels::Adam& how);
void step_on_device(const DeviceTensors& tensors, const kernels::Adagrad& how);

}  // namespace troika::optim
