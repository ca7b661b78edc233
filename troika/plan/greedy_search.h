// Orders in which every rank does what it can at once.
#pragma once

#include <optional>

#include "troika/layout/schedule.h"
#include "troika/plan/pass_search.h"

namespace troika::plan {

// The passes of each rank if it takes, whenever it is free, the input part of a backward pass that
// is there, else a forward pass for which it has memory, else a weight part. For limits that keep
// micro-batches back. Nothing where even one micro-batch is above the limit.
std::optional<layout::Schedule> greedy_passes(const SearchedPipeline& pipeline);

}  // namespace troika::plan
