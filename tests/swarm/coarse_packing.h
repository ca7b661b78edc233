// A packing that loses much: 8 bits a number, with a scale for each block.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "troika/net/packing.h"

namespace troika::swarm {

// Rounding of a number is an error of at most this, times the largest magnitude in its block.
inline constexpr double kCoarseness = 1.0 / 254;

inline net::Packing<double> coarse_packing(size_t block) {
  const auto bytes = [block](size_t, size_t count) {
    return (count + block - 1) / block * sizeof(double) + count;
  };
  const auto pack = [block](size_t, std::span<const double> numbers, std::span<char> to) {
    char* at = to.data();
    for (size_t first = 0; first < numbers.size(); first += block) {
      const auto part = numbers.subspan(first, std::min(block, numbers.size() - first));
      double scale = 0;
      for (const double number : part) scale = std::max(scale, std::abs(number) / 127);
      std::memcpy(at, &scale, sizeof(scale));
      at += sizeof(scale);
      for (const double number : part) {
        *at++ = static_cast<char>(scale > 0 ? std::lround(number / scale) : 0);
      }
    }
  };
  const auto unpack = [block](size_t, std::span<const char> from, std::span<double> numbers) {
    const char* at = from.data();
    for (size_t first = 0; first < numbers.size(); first += block) {
      double scale = 0;
      std::memcpy(&scale, at, sizeof(scale));
      at += sizeof(scale);
      for (auto& number : numbers.subspan(first, std::min(block, numbers.size() - first))) {
        number = scale * static_cast<signed char>(*at++);
      }
    }
  };
  return {.bytes = bytes, .pack = pack, .unpack = unpack, .block = block};
}

}  // namespace troika::swarm
