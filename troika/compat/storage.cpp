#include "troika/compat/storage.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace troika::compat {

void release_memory(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
}

void give_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  auto* from = memory.storage().unsafeGetStorageImpl();
  auto* into = tensor.storage().unsafeGetStorageImpl();
  into->set_data_ptr(from->set_data_ptr(at::DataPtr(nullptr, from->device())));
  into->set_nbytes(memory.nbytes());
  from->set_nbytes(0);
}

LeafMemory memory_of(const at::Tensor& leaf) {
  return {leaf.variable_data(), torch::autograd::impl::version_counter(leaf)};
}

LeafMemory copy_of(const LeafMemory& memory) {
  const at::NoGradGuard no_grad;
  return {memory.values.clone(), c10::VariableVersion(memory.changes.current_version())};
}

LeafMemory counted_apart(const LeafMemory& memory) {
  return {memory.values, c10::VariableVersion(memory.changes.current_version())};
}

void use_memory(const at::Tensor& leaf, const LeafMemory& memory) {
  leaf.set_data(memory.values);
  torch::autograd::impl::set_version_counter(leaf, memory.changes);
}

}  // namespace troika::compat
