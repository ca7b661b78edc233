// Schedules that are made for measured times and a limit of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/layout/schedule.h"
#include "troika/layout/schedules/orders.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

inline constexpr const char* kAutomaticSchedule = "auto";

// The most that the ranks times the micro-batches may be.
inline constexpr int64_t kMostAutomaticPasses = 100'000;

// The schedule with the shortest longest own span (Simulation::spans) that is found within the
// limit: among those of the heuristic of arXiv 2401.10241, section 3, those of the table in their
// domains, building blocks of arXiv 2405.15362 that keep to the limit, and all these with weight
// parts where ranks wait by the given times. So it is never worse than the best of the table within
// the limit. `shape.chunks` 0 tries one stage on each rank, and two unless the model is known to
// have too few blocks.
//
// `times` are of each rank, or one for all. `limit` is in activations of a rank's share of the
// model for one micro-batch, as peak_memory() counts them. Throws Error(usage) for a shape outside
// of all schedules' domains, and naming the least memory found where none keeps to the limit.
layout::Schedule automatic_schedule(const layout::PipelineShape& shape,
                                    const std::vector<layout::StageTimes>& times, double limit,
                                    const MemoryModel& memory);

}  // namespace troika::plan
