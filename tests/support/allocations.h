// Counts the calls of malloc() and related functions. In a program that links allocations.cpp,
// counting functions with the same behaviour replace them. Not for use with sanitizers, which
// replace them too.
#pragma once

#include <cstdint>

namespace troika::testing_support {

// Returns the number of calls since the start of the process. `new` and LibTorch's CPU allocator
// call these functions.
int64_t allocations_of_process();
// Returns the number of calls by the calling thread.
int64_t allocations_of_thread();

}  // namespace troika::testing_support
