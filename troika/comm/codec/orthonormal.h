// Makes orthonormal columns with the same bits on every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troika::comm::codec {

// Makes the columns of a two-dimensional floating tensor orthonormal in place, by Gram-Schmidt in
// float64. A column that keeps less than 1e-8 of its length after projection on the earlier columns
// is removed holds only rounding errors and becomes zero. Returns the indices of these columns.
// Non-finite values spread as NaN.
//
// Runs on the host in plain loops: a BLAS picks its kernels by processor, and ranks that differ in
// the last bit would diverge.
std::vector<int64_t> orthonormalise(const at::Tensor& matrix);

}  // namespace troika::comm::codec
