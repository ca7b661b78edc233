// Measures the cost of messages between the ranks of a group.
#pragma once

#include "troika/comm/algorithms/rank_subset.h"
#include "troika/layout/all_reduce.h"

namespace troika::comm {

using layout::Links;

// Times messages between neighbours inside a node and between nodes, on all ranks at once, and
// returns the slowest rank's times on every rank. If collectives inside a node need no messages,
// `inside` is the link with which a ring over messages would take the same time. Blocks for a few
// round trips and two messages of 256 KiB.
Links measure_links(const RankSubset& everyone);

}  // namespace troika::comm
