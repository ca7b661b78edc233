#include "troika/server/vector_algebra.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "troika/base/error.h"
#include "troika/server/vector_kernels.h"

namespace troika::server {

namespace {

// A sum has this many partial sums, so that the processor need not wait for each addition.
constexpr size_t kLanes = 8;

template <typename Term>
double sum_of(size_t count, const Term& term) {
  std::array<double, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  for (; i < count; ++i) sums[i % kLanes] += term(i);
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

double combine(VectorKind kind, double one, double other) {
  if (kind != VectorKind::max_norm) return one + other;
  return other > one || std::isnan(other) ? other : one;
}

template <typename T>
void execute(VectorKind kind, std::span<T> x, std::span<const T> y, double factor) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (kind == VectorKind::copy) {
      x[i] = y[i];
    } else if (kind == VectorKind::fill) {
      x[i] = static_cast<T>(factor);
    } else {
      const double product = factor * static_cast<double>(kind == VectorKind::add ? y[i] : x[i]);
      x[i] =
          static_cast<T>(kind == VectorKind::add ? static_cast<double>(x[i]) + product : product);
    }
  }
}

template <typename T>
double reduce(VectorKind kind, std::span<const T> x, std::span<const T> y) {
  const auto at = [](std::span<const T> values, size_t i) {
    return static_cast<double>(values[i]);
  };
  if (kind == VectorKind::dot) {
    return sum_of(x.size(), [&](size_t i) { return at(x, i) * at(y, i); });
  }
  if (kind == VectorKind::one_norm) {
    return sum_of(x.size(), [&](size_t i) { return std::abs(at(x, i)); });
  }
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = combine(kind, most, std::abs(at(x, i)));
  return most;
}

std::string vector_problem(const TableSpec& one, const TableSpec& other) {
  for (const auto* const table : {&one, &other}) {
    if (table->keys == 0 || table->width == 0) {
      return fmt::format("table {} is no vector; got keys={} width={}, expected both above 0",
                         table->name, table->keys, table->width);
    }
  }
  if (one.keys == other.keys && one.width == other.width && one.type == other.type) return "";
  return fmt::format("tables {} and {} differ in type, keys or width", one.name, other.name);
}

std::vector<TableOperation> parse_operations(std::span<const char> values) {
  std::vector<TableOperation> operations(values.size() / sizeof(TableOperation));
  const size_t bytes = operations.size() * sizeof(TableOperation);
  if (bytes > 0) std::memcpy(operations.data(), values.data(), bytes);
  bool fits = bytes == values.size();
  for (const auto& operation : operations) {
    fits = fits && operation.kind <= VectorKind::max_norm && operation.unused == 0;
  }
  if (fits) return operations;
  throw Error("server", ErrorKind::failure,
              {.what = "a message has no vector operations",
               .got = std::to_string(values.size()) + " bytes"});
}

template void execute<float>(VectorKind, std::span<float>, std::span<const float>, double);
template void execute<double>(VectorKind, std::span<double>, std::span<const double>, double);
template double reduce<float>(VectorKind, std::span<const float>, std::span<const float>);
template double reduce<double>(VectorKind, std::span<const double>, std::span<const double>);

}  // namespace troika::server
