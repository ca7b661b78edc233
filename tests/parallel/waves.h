// Tensors that are the same in every process.
#pragma once

#include <ATen/ATen.h>

namespace troika::parallel {

// Returns sin(factor * i + phase) for the elements i of a float64 tensor of this shape.
inline at::Tensor waves(at::IntArrayRef shape, double factor, double phase) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::sin(at::arange(count, at::kDouble) * factor + phase).view(shape);
}

}  // namespace troika::parallel
