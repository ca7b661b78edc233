// Counts the calls of malloc() and its kin. A program that links allocations.cpp has them replaced
// by counting ones of the same behaviour; not for use with sanitizers, which replace them too.
#pragma once

#include <cstdint>

namespace troika::testing_support {

// Since the start of the process. `new` and LibTorch's allocator for the CPU call malloc()'s kin.
int64_t allocations_of_process();
// Counts those of the calling thread alone.
int64_t allocations_of_thread();

}  // namespace troika::testing_support
