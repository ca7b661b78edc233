// Measures the cost of messages between the ranks of a group.
#pragma once

#include "troika/comm/algorithms/party.h"
#include "troika/layout/all_reduce.h"

namespace troika::comm {

using layout::Links;

// Times messages between neighbours of a node and between nodes, all ranks at once, and returns the
// same numbers on every rank: the slowest rank's. Where collectives inside a node need no messages,
// `inside` is the link over which a ring would take as long. Blocks; a few round trips and two
// messages of 256 KiB.
Links measure_links(const Party& everyone);

}  // namespace troika::comm
