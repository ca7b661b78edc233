// The norm of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace troika::parallel {

// Sums the squares of all elements in float64. Gives the same bits for any number of threads.
double sum_of_squares(const std::vector<at::Tensor>& tensors);
// Scales the tensors, whose 2-norm together is `norm`, so that it is at most `max_norm`. They stay
// where it is not finite.
void clip_to(const std::vector<at::Tensor>& tensors, double norm, double max_norm);

}  // namespace troika::parallel
