// Low-rank factors of a matrix, as codec powersgd makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::comm::codec {

// The matrix that a tensor is compressed as: its first dimension by all others.
struct MatrixShape {
  int64_t rows = 1;
  int64_t columns = 0;
  int64_t rank = 0;  // of the factors: rows x rank and columns x rank

  // `rank` is the largest rank of the factors.
  static MatrixShape of(at::IntArrayRef sizes, int64_t rank);
  // Whether the factors have less than half of the matrix's elements. Tensors of fewer than two
  // dimensions never save that much.
  bool pays() const { return rows > 1 && factor_count() * 2 < rows * columns; }
  // Elements of both factors.
  int64_t factor_count() const { return (rows + columns) * rank; }
};

// Returns P Q^T, computed column by column with element-wise operations. These give the same bits
// on different processors; a matrix product does not.
at::Tensor outer_product(const at::Tensor& p, const at::Tensor& q);

// Makes the columns of `q`, float64 [columns, rank], orthonormal in place. Columns that are
// linearly dependent or zero are drawn from `seed` first. Gives the same bits on every rank.
void make_query(const at::Tensor& q, uint64_t seed);

}  // namespace troika::comm::codec
