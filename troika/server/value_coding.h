// Encodings of values and bytes for messages. Internal to the room.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "troika/server/table.h"

namespace troika::server {

// The form of values in a message. All but `plain` lose bits.
enum class ValueForm : uint8_t {
  plain,
  half,    // IEEE 754 binary16, rounded to nearest, ties to even
  fixed1,  // the smallest and the largest value, and 1, 2 or 3 bytes for the position of each value
  fixed2,  // between them, rounded at random, so that its expectation is the value
  fixed3,
  last = fixed3,
};

// Encodes values. Returns false, without a result, for `plain`, and if a value is not finite or too
// large for the form. The draws of fixed-point rounding depend only on `seed` and the positions.
bool encode_values(ValueForm form, ValueType type, std::span<const char> values, uint64_t seed,
                   std::string& encoded);
// The inverse, up to rounding. Throws Error(server, failure) for bytes that encode_values() does
// not make.
void decode_values(ValueForm form, ValueType type, std::span<const char> encoded,
                   std::string& values);

// Compresses bytes with zlib (level 1). Returns false, without a result, if that is not shorter.
bool pack(std::span<const char> bytes, std::string& packed);
// The inverse. Throws Error(server, failure) for bytes that pack() does not make, and for more than
// kMostUnpacked bytes.
void unpack(std::span<const char> packed, std::string& bytes);
inline constexpr size_t kMostUnpacked = size_t{1} << 30;

// Conversions of one number, for `half`.
uint16_t to_half(float value);
float from_half(uint16_t bits);

}  // namespace troika::server
