// Operations on whole vectors that stay where they are. On a parameter server each vector is a
// dense table: the servers execute the operations on their ranges, and only numbers such as dot
// products travel (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika::server {

enum class VectorKind : uint32_t {
  fill,      // x = factor
  copy,      // x = y
  scale,     // x = factor * x
  add,       // x = x + factor * y
  dot,       // returns the sum of x_i * y_i
  one_norm,  // returns the sum of |x_i|
  max_norm,  // returns the maximum of |x_i|; NaN if some x_i is NaN
};

// One operation on named vectors, which may be the same one. Elements of float32 are computed in
// float64 and rounded once. Sums are float64.
struct VectorOperation {
  VectorKind kind = VectorKind::fill;
  std::string x = {};
  std::string y = {};  // only for copy, add and dot
  double factor = 0;   // only for fill, scale and add

  static VectorOperation fill(std::string x, double value) {
    return {VectorKind::fill, std::move(x), {}, value};
  }
  static VectorOperation copy(std::string x, std::string from) {
    return {VectorKind::copy, std::move(x), std::move(from)};
  }
  static VectorOperation scale(std::string x, double factor) {
    return {VectorKind::scale, std::move(x), {}, factor};
  }
  static VectorOperation add(std::string x, double factor, std::string y) {
    return {VectorKind::add, std::move(x), std::move(y), factor};
  }
  static VectorOperation dot(std::string x, std::string y) {
    return {VectorKind::dot, std::move(x), std::move(y)};
  }
  static VectorOperation one_norm(std::string x) { return {VectorKind::one_norm, std::move(x)}; }
  static VectorOperation max_norm(std::string x) { return {VectorKind::max_norm, std::move(x)}; }

  bool operator==(const VectorOperation&) const = default;
};
using VectorOperations = std::vector<VectorOperation>;

// Whether the operation has a second vector, changes its first one, or returns a number.
inline bool has_second(VectorKind kind) {
  return kind == VectorKind::copy || kind == VectorKind::add || kind == VectorKind::dot;
}
inline bool changes_first(VectorKind kind) {
  return kind < VectorKind::dot;
}
inline bool returns_number(VectorKind kind) {
  return !changes_first(kind);
}
// Returns the number of a vector from those of two parts of it.
double combine(VectorKind kind, double one, double other);

}  // namespace troika::server
