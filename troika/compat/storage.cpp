#include "troika/compat/storage.h"

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

}  // namespace troika::compat
