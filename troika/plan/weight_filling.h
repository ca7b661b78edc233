// Puts weight parts of backward passes into the waits of a schedule.
#pragma once

#include <optional>

#include "troika/layout/schedule.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// When a weight part may end later than the wait that it is put into.
enum class Overrun {
  never,
  balanced,  // where the rank would otherwise idle more than the one that idles
             // most
  always
};

// The passes of `schedule` with backward passes split, forward passes and input parts in their
// order, and weight parts (oldest first) where ranks wait by these times, by stage, or where memory
// is needed: at most `limit` activations of a rank's share of the model. Nothing where the order
// does not go with that limit.
std::optional<layout::Schedule> fill_weights(const layout::Schedule& schedule,
                                             const std::vector<layout::StageTimes>& times,
                                             double limit, const MemoryModel& memory,
                                             Overrun overrun);

}  // namespace troika::plan
