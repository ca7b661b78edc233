// How much memory the tensors of this process take.
#pragma once

#include <cstdint>

namespace troika::memory {

// Counted are bytes that tensors ask for: those of LibTorch's allocator for the CPU from
// compat::count_tensor_memory() on, and shared memory that a group lends. Not counted: scratch of
// oneDNN and of the BLAS, and all that is no tensor. Any thread may call any of these.

// Negative for bytes given back.
void add(int64_t bytes);
int64_t live();
// The most since restart_peak(), which lowers it to what is live, or since the start.
int64_t peak();
void restart_peak();

}  // namespace troika::memory
