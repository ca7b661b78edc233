// Releases and replaces the memory of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace troika::compat {

// Releases the memory of all tensors that share `tensor`'s storage, which `tensor` uses from its
// first byte. They keep their shapes.
void release_memory(const at::Tensor& tensor);

// Gives these tensors the memory of `memory`, which has the same number of bytes, is on the same
// device, and must not be used any more. Autograd does not count this as a change of values.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory);

// The memory of a leaf of autograd's graphs, and autograd's count of the changes to it, by which a
// backward pass refuses a tensor that has changed since its forward pass.
struct LeafMemory {
  at::Tensor values;  // without a graph
  c10::VariableVersion changes;
};
LeafMemory memory_of(const at::Tensor& leaf);
// Returns memory of its own with the same values, strides and count.
LeafMemory copy_of(const LeafMemory& memory);
// Returns the same memory with a count of its own: a graph that was recorded with the count of
// `memory` does not notice changes that are counted by the result.
LeafMemory counted_apart(const LeafMemory& memory);
// Makes this the leaf's memory and count. The memory must have the leaf's type, shape and device.
// Graphs keep the leaf itself, and views of the memory that the leaf had when they were recorded: a
// backward pass must run while the leaf has that memory.
void use_memory(const at::Tensor& leaf, const LeafMemory& memory);

}  // namespace troika::compat
