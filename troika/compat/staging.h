// Host memory through which tensors go to devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

namespace troika::compat {

// Returns a copy of a host tensor, with its strides, in memory of its own from which a device of
// this type copies asynchronously: page-locked for CUDA.
at::Tensor staged_for(c10::DeviceType type, const at::Tensor& tensor);

}  // namespace troika::compat
