#include "troika/comm/reduce.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "troika/base/error.h"

namespace troika::comm {

namespace {

template <typename T, typename Combine>
void combine(void* into, const void* from, size_t count, Combine&& op) {
  auto* __restrict a = static_cast<T*>(into);
  const auto* __restrict b = static_cast<const T*>(from);
  for (size_t i = 0; i < count; ++i) a[i] = op(a[i], b[i]);
}

template <typename T>
void reduce_typed(void* into, const void* from, size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::average:
      return combine<T>(into, from, count, [](T x, T y) { return static_cast<T>(x + y); });
    case ReduceOp::min:
      return combine<T>(into, from, count, [](T x, T y) { return y < x ? y : x; });
    case ReduceOp::max:
      return combine<T>(into, from, count, [](T x, T y) { return x < y ? y : x; });
    case ReduceOp::product:
      return combine<T>(into, from, count, [](T x, T y) { return static_cast<T>(x * y); });
  }
}

template <typename T>
void divide_typed(void* data, size_t count, int ranks) {
  auto* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / static_cast<T>(ranks));
}

// Calls visit.operator()<T>() for the C++ type behind an accumulation type.
template <typename Visit>
void with_type(c10::ScalarType type, Visit&& visit) {
  switch (type) {
    case c10::ScalarType::Double:
      return visit.template operator()<double>();
    case c10::ScalarType::Float:
      return visit.template operator()<float>();
    case c10::ScalarType::Long:
      return visit.template operator()<int64_t>();
    case c10::ScalarType::Int:
      return visit.template operator()<int32_t>();
    case c10::ScalarType::Short:
      return visit.template operator()<int16_t>();
    case c10::ScalarType::Char:
      return visit.template operator()<int8_t>();
    case c10::ScalarType::Byte:
      return visit.template operator()<uint8_t>();
    default:
      TROIKA_CHECK(false, "not an accumulation type: " + std::string(c10::toString(type)));
  }
}

}  // namespace

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

c10::ScalarType accumulation_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return c10::ScalarType::Float;
    case c10::ScalarType::Bool:
      return c10::ScalarType::Byte;
    case c10::ScalarType::Double:
    case c10::ScalarType::Float:
    case c10::ScalarType::Long:
    case c10::ScalarType::Int:
    case c10::ScalarType::Short:
    case c10::ScalarType::Char:
    case c10::ScalarType::Byte:
      return type;
    default:
      throw Error("comm", ErrorKind::usage,
                  {.what = "cannot reduce this type",
                   .got = c10::toString(type),
                   .expected = "a real number, an integer or a boolean"});
  }
}

void reduce_into(void* into, const void* from, size_t count, c10::ScalarType type, ReduceOp op) {
  with_type(type, [&]<typename T>() { reduce_typed<T>(into, from, count, op); });
}

void divide(void* data, size_t count, c10::ScalarType type, int ranks) {
  with_type(type, [&]<typename T>() { divide_typed<T>(data, count, ranks); });
}

}  // namespace troika::comm
