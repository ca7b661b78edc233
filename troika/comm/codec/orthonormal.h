// Orthonormal columns with the same bits on every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troika::comm::codec {

// Makes the columns of a two-dimensional floating tensor orthonormal in place, by Gram-Schmidt in
// float64. A column that has less than 1e-8 of its length left beside the ones before it carries
// only rounding, and becomes zero; returns the numbers of these. Values that are not finite spread
// as NaN.
//
// Runs on the host in plain loops: a BLAS picks its kernels by processor, and ranks that disagree
// in the last bit would drift apart.
std::vector<int64_t> orthonormalise(const at::Tensor& matrix);

}  // namespace troika::comm::codec
