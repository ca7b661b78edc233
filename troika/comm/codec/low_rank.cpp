#include "troika/comm/codec/low_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "troika/base/random.h"
#include "troika/comm/codec/encodings.h"
#include "troika/comm/codec/memory.h"
#include "troika/comm/codec/orthonormal.h"

namespace troika::comm::codec {

MatrixShape MatrixShape::of(at::IntArrayRef sizes, int64_t rank) {
  const int64_t count = c10::multiply_integers(sizes);
  const int64_t rows = sizes.size() < 2 || count == 0 ? 1 : sizes.front();
  return {rows, count / rows, std::min({rank, rows, count / rows})};
}

at::Tensor outer_product(const at::Tensor& p, const at::Tensor& q) {
  const at::Tensor sum = p.select(1, 0).unsqueeze(1) * q.select(1, 0);
  for (int64_t k = 1; k < p.size(1); ++k) sum.add_(p.select(1, k).unsqueeze(1) * q.select(1, k));
  return sum;
}

void make_query(const at::Tensor& q, uint64_t seed) {
  const std::vector<int64_t> missing = orthonormalise(q);
  if (missing.empty()) return;
  Random random(seed);
  auto values = q.accessor<double, 2>();
  for (const int64_t column : missing) {
    for (int64_t row = 0; row < q.size(0); ++row) values[row][column] = random.normal();
  }
  orthonormalise(q);
}

int64_t LowRankEncoding::bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const {
  const auto shape = MatrixShape::of(sizes, rank_);
  const int64_t each =
      static_cast<int64_t>(c10::elementSize(shape.pays() ? computation_type(type) : type));
  return each * (shape.pays() ? shape.factor_count() : c10::multiply_integers(sizes));
}

// The second step brings the factors close to the best ones of their rank (Halko, Martinsson and
// Tropp, SIAM Review 2011, algorithm 4.4). The codec needs only one step per call, because it
// starts from the factors of the previous call.
void LowRankEncoding::encode(const at::Tensor& values, c10::ScalarType type,
                             const at::Tensor& bytes, const at::Tensor& left_out) const {
  const auto shape = MatrixShape::of(values.sizes(), rank_);
  if (!shape.pays()) return whole_.encode(values, type, bytes, left_out);
  const auto computed = computation_type(type);
  const auto matrix = values.to(computed).view({shape.rows, shape.columns});
  const auto start = at::zeros({shape.columns, shape.rank}, at::kDouble);
  make_query(start, seed_);
  auto q = start.to(computed);
  at::Tensor p;
  for (int step = 0; step < 2; ++step) {
    if (step > 0) orthonormalise(q);
    p = at::mm(matrix, q);
    orthonormalise(p);
    q = at::mm(matrix.t(), p);
  }
  bytes.copy_(at::cat({p.reshape({-1}), q.reshape({-1})}).view(at::kByte));
  if (!left_out.defined()) return;
  const auto decoded = outer_product(p, q).view(values.sizes());
  left_out.copy_(values - decoded);
}

void LowRankEncoding::decode(const at::Tensor& bytes, c10::ScalarType type,
                             const at::Tensor& values) const {
  const auto shape = MatrixShape::of(values.sizes(), rank_);
  if (!shape.pays()) return whole_.decode(bytes, type, values);
  // The copy is aligned.
  const auto factors = bytes.clone().view(computation_type(type));
  const int64_t of_p = shape.rows * shape.rank;
  const auto p = factors.narrow(0, 0, of_p).view({shape.rows, shape.rank});
  const auto q =
      factors.narrow(0, of_p, shape.columns * shape.rank).view({shape.columns, shape.rank});
  values.copy_(outer_product(p, q).view(values.sizes()));
}

}  // namespace troika::comm::codec
