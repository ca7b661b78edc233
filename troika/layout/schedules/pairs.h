// Orders in which a rank runs two micro-batches where the published order runs one, so that their
// forward passes can run at the same time.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/layout/schedules/schedule.h"
#include "troika/layout/schedules/table.h"

namespace troika::layout {

// Throws Error(usage) if the row does not take half as many micro-batches, rounded up.
void require_pairs(const ScheduleRow& row, const PipelineShape& shape);

// Returns the row's order for half as many micro-batches, each pass of which is replaced by those
// of micro-batches 2i and 2i + 1; the last one is alone if their number is odd. Each stage takes
// the micro-batches in the row's own order in its forward passes, and so it does in its backward
// passes: gradients are added up alike. No passes start together. A rank has activations of up to
// twice as many micro-batches, except where all forward passes come first. `shape` is one that
// require_domain() returns. Throws the error of require_pairs().
Schedule order_in_pairs(const ScheduleRow& row, const PipelineShape& shape);

// Lets the forward passes of micro-batches 2i and 2i + 1 of a stage start together
// (Action::joined), where the one follows the other.
Schedule join_pairs(Schedule passes);

// Whether actions[index] and the next action are forward passes that start together.
bool begins_pair(const std::vector<Action>& actions, size_t index);

}  // namespace troika::layout
