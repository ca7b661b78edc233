// The memory behind tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::compat {

// All tensors that share `tensor`'s storage, which holds it from its first byte, keep their shapes
// but have no memory from here on.
void release_memory(const at::Tensor& tensor);

// They have that of `memory` instead, of the same number of bytes and on the same device, which is
// not to be used any more. Autograd does not take this for a change of values.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

}  // namespace troika::compat
