// Integers as little-endian bytes, and pointer casts for libsodium.
#pragma once

#include <cstddef>

namespace troika::net {

template <typename Number>
void put(char* to, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i) to[i] = static_cast<char>(value >> (8 * i));
}

template <typename Number>
Number take(const char* from) {
  Number value = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    value |= static_cast<Number>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return value;
}

inline const unsigned char* raw(const char* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
inline unsigned char* raw(char* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

}  // namespace troika::net
