// LibTorch's CPU allocator, extended to report and limit allocations.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troika::compat {

// Counts CPU tensors in base/memory.h from now on; tensors made before are never counted. Call it
// before any tensors that matter; further calls do nothing.
void count_tensor_memory();

// From now on, malloc() keeps the memory of freed tensors of less than 32 MiB instead of returning
// it to the system, which would clear it again for the next step. Affects the whole process.
void keep_freed_memory();
bool counts_tensor_memory();
// Whether this CPU tensor is counted.
bool is_counted(const at::Tensor& tensor);

// From now on, a CPU tensor for which this machine or a limit of this process's cgroup has no
// memory is refused: its allocation throws Error(failure) with `hint`, instead of the kernel
// killing the process. Also counts tensors. The system is queried only when tensors use an eighth
// of the remaining memory more than at the last query, so memory that other processes allocate in
// between is not seen.
void refuse_tensors_beyond_memory(const std::string& hint);

// While on, tensors that this thread makes on the CPU are zeros that use memory only where they are
// written to, and are never refused. All of their bytes are counted or, unless `counts`, none.
// Tensors of less than kLeastWithoutMemory bytes are made as usual.
inline constexpr int64_t kLeastWithoutMemory = 128 << 10;
void give_tensors_no_memory(bool on, bool counts = true);

}  // namespace troika::compat
