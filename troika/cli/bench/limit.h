// The minimum work of an all-reduce in shared memory: each byte is read once and written once.
#pragma once

#include <cstdint>

namespace troika::cli::bench {

// Sets buffers[k][i] = buffers[0][i] + ... + buffers[ranks - 1][i] for every k and begin <= i <
// end, with the widest vectors of this machine.
void sum_into_all(float* const* buffers, int ranks, int64_t begin, int64_t end);

// Returns the start of rank's slice of `count` elements, which is also the end of the previous
// rank's slice. Slices begin on cache lines if the buffer does.
int64_t slice_begin(int64_t count, int rank, int ranks);

}  // namespace troika::cli::bench
