// The norm of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace troika::parallel {

// Scales the tensors so that the 2-norm over all their elements, made in float64, is at most
// `max_norm`. Returns the norm before; if it is not finite, they stay. The same bits for any number
// of threads.
double clip_norm(const std::vector<at::Tensor>& tensors, double max_norm);

// The sum of squares that is made of, and what is done with the root of all of it.
double sum_of_squares(const std::vector<at::Tensor>& tensors);
void clip_to(const std::vector<at::Tensor>& tensors, double norm, double max_norm);

}  // namespace troika::parallel
