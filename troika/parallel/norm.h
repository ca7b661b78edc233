// Norm and clipping of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace troika::parallel {

// Returns the sum of the squares of all elements, computed in float64. The bits do not depend on
// the number of threads.
double sum_of_squares(const std::vector<at::Tensor>& tensors);
// Scales the tensors, whose joint 2-norm is `norm`, so that it is at most `max_norm`. Leaves them
// unchanged if `norm` is not finite.
void clip_to(const std::vector<at::Tensor>& tensors, double norm, double max_norm);

}  // namespace troika::parallel
