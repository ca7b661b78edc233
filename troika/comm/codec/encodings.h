// The encodings that make_encoding() chooses from; the codecs of the same names send them.
#pragma once

#include <cstdint>
#include <string_view>

#include "troika/comm/codec/encoding.h"

namespace troika::comm::codec {

class CopyEncoding : public Encoding {
 public:
  std::string_view name() const override { return "none"; }
  int64_t bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const override;
  void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
              const at::Tensor& left_out) const override;
  void decode(const at::Tensor& bytes, c10::ScalarType type,
              const at::Tensor& values) const override;
};

// Elements rounded to Half or BFloat16. Finite values beyond the range of Half become the nearest
// finite value; an infinity stays infinite.
class CastEncoding : public Encoding {
 public:
  explicit CastEncoding(c10::ScalarType type) : type_(type) {}
  std::string_view name() const override;
  int64_t bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const override;
  void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
              const at::Tensor& left_out) const override;
  void decode(const at::Tensor& bytes, c10::ScalarType type,
              const at::Tensor& values) const override;
  // Views the bytes as elements of the encoding's type, which can be summed.
  at::Tensor elements(const at::Tensor& bytes) const;

 private:
  const c10::ScalarType type_;
};

// The max(1, density * n) elements of largest magnitude: their values in the tensor's type, then
// their indices in 4 bytes each (8 for tensors that need them).
class TopKEncoding : public Encoding {
 public:
  explicit TopKEncoding(double density) : density_(density) {}
  std::string_view name() const override { return "topk"; }
  int64_t bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const override;
  void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
              const at::Tensor& left_out) const override;
  void decode(const at::Tensor& bytes, c10::ScalarType type,
              const at::Tensor& values) const override;
  // Adds the result of decode() to `sum`.
  void add_decoded(const at::Tensor& bytes, c10::ScalarType type, const at::Tensor& sum) const;

 private:
  int64_t chosen_of(int64_t count) const;
  const double density_;
};

// Factors of rank r as codec powersgd makes them (codecs.h): P, orthonormal, then Q, in the
// computation type, found by two steps of power iteration on this tensor alone. A tensor for which
// the codec sends no factors is copied, so its shape matters.
class LowRankEncoding : public Encoding {
 public:
  LowRankEncoding(int64_t rank, uint64_t seed) : rank_(rank), seed_(seed) {}
  std::string_view name() const override { return "powersgd"; }
  int64_t bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const override;
  void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
              const at::Tensor& left_out) const override;
  void decode(const at::Tensor& bytes, c10::ScalarType type,
              const at::Tensor& values) const override;

 private:
  const int64_t rank_;
  const uint64_t seed_;
  const CopyEncoding whole_;
};

// 8-bit integers with one scale, absmax / 127, per block. A row is `block` integers and their
// scale; the scale is float64 for Double, otherwise float32.
class Int8Encoding : public Encoding {
 public:
  explicit Int8Encoding(int64_t block) : block_(block) {}
  std::string_view name() const override { return "int8"; }
  int64_t block() const { return block_; }
  int64_t rows_of(int64_t count) const { return (count + block_ - 1) / block_; }
  int64_t row_bytes(c10::ScalarType type) const;
  int64_t bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const override;
  void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
              const at::Tensor& left_out) const override;
  void decode(const at::Tensor& bytes, c10::ScalarType type,
              const at::Tensor& values) const override;
  // Decodes into `values` of the scales' type. Returns whether all values are finite.
  bool decode_all(const at::Tensor& bytes, const at::Tensor& values) const;

 private:
  const int64_t block_;
};

}  // namespace troika::comm::codec
