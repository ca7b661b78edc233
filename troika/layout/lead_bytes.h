// How far a rank may be ahead of others at a summation server.
#pragma once

#include <cstdint>

namespace troika::layout {

// Returns the bytes that a rank may push to a server of this share (SummationSplit) before the
// slowest rank has pushed as much there. They are in proportion to shares, so that all servers
// finish at the same time, and enough to keep links busy (bench/byteps).
int64_t lead_bytes(double share, int64_t partition_bytes);

}  // namespace troika::layout
