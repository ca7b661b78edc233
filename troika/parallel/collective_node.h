// Collectives as functions that autograd differentiates.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace troika::parallel {

using OfTensor = std::function<at::Tensor(const at::Tensor&)>;

// Returns forward(x), whose gradient is backward(gradient). Both are called without a graph, and
// must return new tensors; `backward` is called on the thread of the backward pass. `what` names
// the function in the error of a backward pass with create_graph; must be a literal.
at::Tensor with_gradient(const at::Tensor& x, const OfTensor& forward, OfTensor backward,
                         const char* what);

}  // namespace troika::parallel
