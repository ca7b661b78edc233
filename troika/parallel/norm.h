// The norm of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace troika::parallel {

// Scales the tensors so that the 2-norm over all their elements, made in float64, is at most
// `max_norm`. Returns the norm before; if it is not finite, they stay. The same bits for any number
// of threads.
double clip_norm(const std::vector<at::Tensor>& tensors, double max_norm);

}  // namespace troika::parallel
