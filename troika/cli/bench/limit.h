// The least an all-reduce in shared memory has to do: each byte is read once and written once.
#pragma once

#include <cstdint>

namespace troika::cli::bench {

// buffers[k][i] = buffers[0][i] + ... + buffers[ranks - 1][i] for every k and begin <= i < end,
// with the widest vectors that this machine has.
void sum_into_all(float* const* buffers, int ranks, int64_t begin, int64_t end);

// Where rank's slice of `count` elements begins; that of rank + 1 is where it ends. Slices begin on
// cache lines of a buffer that does.
int64_t slice_begin(int64_t count, int rank, int ranks);

}  // namespace troika::cli::bench
