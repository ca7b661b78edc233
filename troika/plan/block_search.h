// Search for building blocks of V schedules by their memory.
#pragma once

#include <vector>

#include "troika/layout/schedules/v_block.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// Returns the blocks of arXiv 2405.15362 whose ranks keep at most `limit` activations of a stage in
// the steady state, if every pass takes one slot. Tries all positions of a rank's four passes
// modulo the period. From one rank to the next, the slots of a pass differ by a constant, which may
// change once to a smaller one. Returns at most `most` blocks, in decreasing order of the
// activations that they keep.
std::vector<layout::VBlock> blocks_within(int ranks, double limit, const MemoryModel& memory,
                                          size_t most);

}  // namespace troika::plan
