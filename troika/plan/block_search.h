// Search for building blocks of V schedules by their memory.
#pragma once

#include <vector>

#include "troika/layout/schedules/v_block.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// Returns the blocks of arXiv 2405.15362 whose ranks keep at most `limit` activations of a stage in
// the steady state, if every pass takes one slot. Tries all positions of a rank's four passes
// modulo the period. Between ranks, passes that go down the ranks have a constant distance, or one
// that changes once to a smaller one. Returns at most `most` blocks, those that keep most
// activations first.
std::vector<layout::VBlock> blocks_within(int ranks, double limit, const MemoryModel& memory,
                                          size_t most);

}  // namespace troika::plan
