#include "troika/comm/codec/orthonormal.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace troika::comm::codec {

namespace {

constexpr double kDependent = 1e-8;

double inner_product(const double* a, const double* b, int64_t length) {
  double sum = 0;
  for (int64_t i = 0; i < length; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::vector<int64_t> orthonormalise(const at::Tensor& matrix) {
  const int64_t length = matrix.size(0);
  const int64_t count = matrix.size(1);
  const at::Tensor columns = at::empty({count, length}, at::kDouble);
  columns.copy_(matrix.t());
  auto* const data = columns.data_ptr<double>();
  std::vector<int64_t> dependent;
  for (int64_t k = 0; k < count; ++k) {
    double* const column = data + k * length;
    const double before = std::sqrt(inner_product(column, column, length));
    // A nearly dependent column becomes orthogonal only after a second pass.
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t j = 0; j < k; ++j) {
        const double* const other = data + j * length;
        const double along = inner_product(column, other, length);
        for (int64_t i = 0; i < length; ++i) column[i] -= along * other[i];
      }
    }
    const double after = std::sqrt(inner_product(column, column, length));
    if (before == 0 || after < kDependent * before) {
      std::fill_n(column, length, 0.0);
      dependent.push_back(k);
    } else {
      for (int64_t i = 0; i < length; ++i) column[i] /= after;
    }
  }
  matrix.copy_(columns.t());
  return dependent;
}

}  // namespace troika::comm::codec
