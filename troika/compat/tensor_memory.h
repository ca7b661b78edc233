// LibTorch's allocator for the CPU, made to tell what it is asked for.
#pragma once

namespace troika::compat {

// From here on, tensors on the CPU count in base/memory.h; those made before never do. Call it
// before there are tensors that matter; again, it does nothing.
void count_tensor_memory();
bool counts_tensor_memory();

}  // namespace troika::compat
