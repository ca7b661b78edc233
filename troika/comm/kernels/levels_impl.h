// Included by one source file per instruction set, which defines the function names
// TROIKA_TO_LEVELS and TROIKA_FROM_LEVELS.
#include "troika/comm/kernels/levels.h"

namespace troika::comm::kernels {

namespace {

constexpr int kMost = 127;

template <typename T>
struct Parts;
template <>
struct Parts<float> {
  using Bits = int;
  static constexpr Bits kWithoutSign = 0x7fffffff;
  static constexpr Bits kInfinity = 0x7f800000;
  static constexpr float kRounder = 0x1.8p23f;
};
template <>
struct Parts<double> {
  using Bits = long long;
  static constexpr Bits kWithoutSign = 0x7fffffffffffffff;
  static constexpr Bits kInfinity = 0x7ff0000000000000;
  static constexpr double kRounder = 0x1.8p52;
};

template <typename T>
auto magnitude_bits(T value) {
  return __builtin_bit_cast(typename Parts<T>::Bits, value) & Parts<T>::kWithoutSign;
}

template <typename T>
void block_to_levels(T* values, size_t count, char* row, size_t block) {
  // Compared as integers, magnitudes keep their order; infinity and then NaN are the largest.
  typename Parts<T>::Bits most = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto bits = magnitude_bits(values[i]);
    most = bits > most ? bits : most;
  }
  const T scale = __builtin_bit_cast(T, most) / kMost;
  __builtin_memcpy(row, &scale, sizeof scale);
  auto* levels = reinterpret_cast<signed char*>(row + sizeof scale);
  for (size_t i = 0; i < count; ++i) {
    T level = values[i] / scale;
    level = level > kMost ? kMost : level;
    level = level < -kMost ? -kMost : level;
    level = level == level ? level : 0;  // 0 / 0 in a block of zeros
    // Rounds to the nearest integer, ties to even: a sum of this magnitude has no fraction bits.
    level = (level + Parts<T>::kRounder) - Parts<T>::kRounder;
    levels[i] = static_cast<signed char>(static_cast<int>(level));
    values[i] -= level * scale;
  }
  for (size_t i = count; i < block; ++i) levels[i] = 0;
}

template <typename T>
void to_levels(T* values, size_t count, size_t block, char* rows) {
  for (size_t at = 0; at < count; at += block, rows += sizeof(T) + block) {
    block_to_levels(values + at, count - at < block ? count - at : block, rows, block);
  }
}

template <typename T>
bool from_levels(const char* rows, size_t count, size_t block, T* values) {
  bool finite = true;
  for (size_t at = 0; at < count; at += block, rows += sizeof(T) + block) {
    T scale;
    __builtin_memcpy(&scale, rows, sizeof scale);
    finite = finite && magnitude_bits(scale) < Parts<T>::kInfinity;
    const auto* levels = reinterpret_cast<const signed char*>(rows + sizeof scale);
    const size_t here = count - at < block ? count - at : block;
    for (size_t i = 0; i < here; ++i) values[at + i] = static_cast<T>(levels[i]) * scale;
  }
  return finite;
}

}  // namespace

void TROIKA_TO_LEVELS(void* values, size_t count, size_t block, bool is_double, char* rows) {
  if (is_double) return to_levels(static_cast<double*>(values), count, block, rows);
  to_levels(static_cast<float*>(values), count, block, rows);
}

bool TROIKA_FROM_LEVELS(const char* rows, size_t count, size_t block, bool is_double,
                        void* values) {
  if (is_double) return from_levels(rows, count, block, static_cast<double*>(values));
  return from_levels(rows, count, block, static_cast<float*>(values));
}

}  // namespace troika::comm::kernels
