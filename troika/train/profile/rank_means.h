// Measurements on all ranks together.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "troika/comm/group.h"

namespace troika::train {

// Calls `round` at least 5 and at most 300 times, for about so many seconds, and on each rank as
// often. Collective; blocks.
void repeat(const comm::Group& group, double seconds, const std::function<void()>& round);

// Replaces the numbers by their means over the ranks, on every rank. Collective; blocks.
void average_over_ranks(const at::Tensor& numbers, const comm::Group& group);

// The same for a single number, which is returned.
double mean_over_ranks(double own, const comm::Group& group);

}  // namespace troika::train
