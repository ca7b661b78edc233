// LibTorch's allocator for the CPU, made to tell what it is asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troika::compat {

// From here on, tensors on the CPU count in base/memory.h; those made before never do. Call it
// before there are tensors that matter; again, it does nothing.
void count_tensor_memory();

// From now on malloc() keeps what tensors of less than 32 MiB leave, instead of giving it back to
// the system, which would clear it again for the next step. Of the whole process.
void keep_freed_memory();
bool counts_tensor_memory();
// Whether this tensor on the CPU is among those that count.
bool is_counted(const at::Tensor& tensor);

// From here on, a tensor on the CPU that neither this machine nor a limit of this process's cgroup
// has memory for is refused: its allocation throws Error(failure) with `hint`, where the kernel
// would end the process without a word. Counts too. The system is asked when tensors take an eighth
// of what was left more than before, so memory that other processes take in between is not seen.
void refuse_tensors_beyond_memory(const std::string& hint);

// While it is on, tensors that this thread makes on the CPU are zeros that take memory only where
// they are written to, and are never refused. All of their bytes count all the same or, unless
// `counts`, none do; those of less than kLeastWithoutMemory bytes are as any other.
inline constexpr int64_t kLeastWithoutMemory = 128 << 10;
void give_tensors_no_memory(bool on, bool counts = true);

}  // namespace troika::compat
