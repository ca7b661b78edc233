// Building blocks of schedules in a V, by the memory that they take.
#pragma once

#include <vector>

#include "troika/layout/schedules/v_block.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// Blocks of arXiv 2405.15362 whose ranks keep at most `limit` activations of a stage in the middle
// of a step, if all passes take one slot: each place of a rank's four passes modulo the period, and
// from rank to rank the same distance for passes that go down the ranks, with at most one change to
// a smaller one. Those that keep most come first, at most `most` of them.
std::vector<layout::VBlock> blocks_within(int ranks, double limit, const MemoryModel& memory,
                                          size_t most);

}  // namespace troika::plan
