// Automatic schedules for measured times and a memory limit.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/layout/plan.h"
#include "troika/layout/schedules/orders.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

using layout::kAutomaticSchedule;

// The maximum product of ranks and micro-batches.
inline constexpr int64_t kMostAutomaticPasses = 100'000;

// Returns the schedule found within the limit whose longest rank span (Simulation::spans) is
// shortest. The candidates are: schedules of the heuristic of arXiv 2401.10241, section 3;
// schedules of the table whose domain contains the shape; building blocks of arXiv 2405.15362
// within the limit; and variants of all these, with weight parts moved into the ranks' waits. So
// the result is never worse than the best schedule of the table within the limit. `shape.chunks` 0
// tries one stage per rank, and also two unless the model is known to have too few blocks.
//
// `times` has one entry per rank, or one for all. The unit of `limit` is the activations of a
// rank's share of the model for one micro-batch, as in peak_memory(). Throws Error(usage) for a
// shape outside of all schedules' domains, and, naming the least memory found, if no schedule is
// within the limit.
layout::Schedule automatic_schedule(const layout::PipelineShape& shape,
                                    const std::vector<layout::StageTimes>& times, double limit,
                                    const MemoryModel& memory);

}  // namespace troika::plan
