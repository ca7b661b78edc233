// Steps over tensors of a device, by LibTorch's operators on lists of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "troika/optim/kernels/kernels.h"

namespace troika::optim {

// Parameters that are stepped alike, their gradients, and the states of Span::first and
// Span::second where the method has them; all on one device, gradients and states in the
// parameters' shapes and orders of dimensions.
struct DeviceTensors {
  std::vector<at::Tensor> parameters, gradients, first, second;
};

// Do what the kernels of these methods do (kernels.h), but for the last bits. All is queued on the
// device's current stream; the host waits for nothing. Gradients are left as they are.
void step_on_device(const DeviceTensors& tensors, const kernels::Sgd& how);
void step_on_device(const DeviceTensors& tensors, const kernels::Adam& how);
void step_on_device(const DeviceTensors& tensors, const kernels::Adagrad& how);

}  // namespace troika::optim
