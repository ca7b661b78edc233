// Greedy orders: every rank runs a pass as soon as it can.
#pragma once

#include <optional>

#include "troika/layout/schedules/schedule.h"
#include "troika/plan/pass_search.h"

namespace troika::plan {

// Returns the order of passes if each free rank runs the first possible one of: the input part of a
// backward pass whose input has arrived; a forward pass for which the rank has memory; a weight
// part. Used for memory limits that delay micro-batches. Returns nothing if a single micro-batch
// exceeds the limit.
std::optional<layout::Schedule> greedy_passes(const SearchedPipeline& pipeline);

}  // namespace troika::plan
