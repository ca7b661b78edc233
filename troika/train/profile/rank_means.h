// Means of measurements over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/comm/group.h"

namespace troika::train {

// Replaces the numbers by their means over the ranks, on every rank. Collective; blocks.
void average_over_ranks(const at::Tensor& numbers, const comm::Group& group);

// The same for a single number, which is returned.
double mean_over_ranks(double own, const comm::Group& group);

}  // namespace troika::train
