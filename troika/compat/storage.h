// Releases and replaces the memory of tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::compat {

// Releases the memory of all tensors that share `tensor`'s storage, which `tensor` uses from its
// first byte. They keep their shapes.
void release_memory(const at::Tensor& tensor);

// Gives these tensors the memory of `memory`, which has the same number of bytes, is on the same
// device, and must not be used any more. Autograd does not count this as a change of values.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

}  // namespace troika::compat
