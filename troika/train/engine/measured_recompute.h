// Plans of recomputation from what blocks cost in a run.
#pragma once

#include <cstdint>

#include "troika/comm/group.h"
#include "troika/data/batch.h"
#include "troika/layout/recompute.h"
#include "troika/train/engine/placement.h"

namespace troika::train {

class Task;

// The fastest plan within a budget of bytes, by the costs of the task's blocks on this batch. One
// plan for all ranks of `group`, by their slowest: blocks may hold collectives, which must pair.
// Parameters are whole. Called by all ranks; blocks.
layout::RecomputePlan measured_plan(const Task& task, const data::Batch& placed, int64_t budget,
                                    const Placement& placement, const comm::Group& group);

}  // namespace troika::train
