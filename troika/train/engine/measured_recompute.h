// Plans recomputation from the measured costs of a model's blocks.
#pragma once

#include <cstdint>

#include "troika/comm/group.h"
#include "troika/data/batch.h"
#include "troika/layout/recompute.h"
#include "troika/train/engine/placement.h"

namespace troika::train {

class Task;

// Returns the fastest recomputation plan within `budget` bytes, from the costs of the task's blocks
// on this batch. The slowest rank of `group` decides, and all ranks get the same plan, because
// blocks may contain collectives. Parameters must be whole. Called by all ranks; blocks.
layout::RecomputePlan measured_plan(const Task& task, const data::Batch& placed, int64_t budget,
                                    const Placement& placement, const comm::Group& group);

}  // namespace troika::train
