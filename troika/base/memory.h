// Memory used by the tensors of this process.
#pragma once

#include <cstdint>

namespace troika::memory {

// Counts the bytes that tensors request: from LibTorch's CPU allocator once
// compat::count_tensor_memory() was called, and shared memory that a process group provides. Does
// not count scratch memory of oneDNN and the BLAS, nor anything else that is not a tensor. Any
// thread may call these functions.

// Adds an allocation; negative for freed bytes.
void add(int64_t bytes);
int64_t live();
// The maximum of live() since the start or the last restart_peak(), which resets it to live().
int64_t peak();
void restart_peak();

}  // namespace troika::memory
