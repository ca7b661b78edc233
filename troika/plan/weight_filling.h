// Moves weight parts of backward passes into the waits of a schedule.
#pragma once

#include <optional>

#include "troika/layout/schedules/schedule.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// When a weight part may end later than the wait in which it starts.
enum class Overrun {
  never,
  balanced,  // if the rank would otherwise become the most idle one
  always
};

// Returns the passes of `schedule` with split backward passes. Forward passes and input parts keep
// their order; weight parts (oldest first) run where ranks wait by these times (by stage), or where
// memory is needed. Each rank keeps at most `limit` activations of its share of the model. Returns
// nothing if the order is impossible within the limit.
std::optional<layout::Schedule> fill_weights(const layout::Schedule& schedule,
                                             const std::vector<layout::StageTimes>& times,
                                             double limit, const MemoryModel& memory,
                                             Overrun overrun);

}  // namespace troika::plan
