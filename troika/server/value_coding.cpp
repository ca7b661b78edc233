#include "troika/server/value_coding.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "troika/base/error.h"
#include "troika/base/random.h"

namespace troika::server {

namespace {

constexpr float kLargestHalf = 65504;
// zlib's limit is 1032:1.
constexpr size_t kMostRatio = 1040;

[[noreturn]] void fail_encoded(const std::string& what, size_t got) {
  throw Error("server", ErrorKind::failure, {.what = what, .got = std::to_string(got) + " bytes"});
}

size_t fixed_bytes(ValueForm form) {
  return static_cast<size_t>(form) - static_cast<size_t>(ValueForm::fixed1) + 1;
}

template <typename T>
bool encode(ValueForm form, std::span<const char> bytes, uint64_t seed, std::string& encoded) {
  const std::span values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  double least = 0, most = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    if (!std::isfinite(value)) return false;
    least = i == 0 ? value : std::min(least, value);
    most = i == 0 ? value : std::max(most, value);
  }
  if (form == ValueForm::half) {
    if (least < -kLargestHalf || most > kLargestHalf) return false;
    encoded.resize(values.size() * sizeof(uint16_t));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = to_half(static_cast<float>(values[i]));
      std::memcpy(encoded.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
    return true;
  }
  const size_t width = fixed_bytes(form);
  const auto steps = static_cast<double>((uint32_t{1} << (8 * width)) - 1);
  if (!std::isfinite(most - least)) return false;
  const double scale = most > least ? steps / (most - least) : 0;
  encoded.resize(2 * sizeof(double) + values.size() * width);
  std::memcpy(encoded.data(), &least, sizeof(least));
  std::memcpy(encoded.data() + sizeof(least), &most, sizeof(most));
  for (size_t i = 0; i < values.size(); ++i) {
    const double position = (static_cast<double>(values[i]) - least) * scale;
    const double draw = static_cast<double>(mix(seed, i) >> 11) * 0x1p-53;
    const auto level = static_cast<uint32_t>(
        std::min(steps, std::floor(position) + (draw < position - std::floor(position) ? 1 : 0)));
    std::memcpy(encoded.data() + 2 * sizeof(double) + i * width, &level, width);
  }
  return true;
}

template <typename T>
void decode(ValueForm form, std::span<const char> encoded, std::string& result) {
  const bool is_half = form == ValueForm::half;
  const size_t head = is_half ? 0 : 2 * sizeof(double);
  const size_t width = is_half ? sizeof(uint16_t) : fixed_bytes(form);
  if (encoded.size() < head || (encoded.size() - head) % width != 0) {
    fail_encoded("encoded values", encoded.size());
  }
  const size_t count = (encoded.size() - head) / width;
  if (count > kMostUnpacked / sizeof(T))
    fail_encoded("encoded values are too long", encoded.size());
  double least = 0, most = 0;
  if (!is_half) {
    std::memcpy(&least, encoded.data(), sizeof(least));
    std::memcpy(&most, encoded.data() + sizeof(least), sizeof(most));
  }
  const auto steps = static_cast<double>((uint64_t{1} << (8 * width)) - 1);
  result.resize(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    uint32_t level = 0;
    std::memcpy(&level, encoded.data() + head + i * width, width);
    const auto value =
        static_cast<T>(is_half ? static_cast<double>(from_half(static_cast<uint16_t>(level)))
                               : least + (most - least) * (static_cast<double>(level) / steps));
    std::memcpy(result.data() + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

uint16_t to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14f) {
    // Numbers below the normal ones are multiples of 2^-24.
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

float from_half(uint16_t bits) {
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  if (exponent == 31) return fraction != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * fraction * 0x1p-24f;
  return sign * std::ldexp(1 + fraction / 1024, exponent - 15);
}

bool encode_values(ValueForm form, ValueType type, std::span<const char> values, uint64_t seed,
                   std::string& encoded) {
  if (form == ValueForm::plain) return false;
  return type == ValueType::float32 ? encode<float>(form, values, seed, encoded)
                                    : encode<double>(form, values, seed, encoded);
}

void decode_values(ValueForm form, ValueType type, std::span<const char> encoded,
                   std::string& values) {
  if (type == ValueType::float32) {
    decode<float>(form, encoded, values);
  } else {
    decode<double>(form, encoded, values);
  }
}

bool pack(std::span<const char> bytes, std::string& packed) {
  if (bytes.size() < 64 || bytes.size() > kMostUnpacked) return false;
  const uint64_t size = bytes.size();
  uLongf length = compressBound(bytes.size());
  packed.resize(sizeof(size) + length);
  std::memcpy(packed.data(), &size, sizeof(size));
  const int status =
      compress2(reinterpret_cast<Bytef*>(packed.data() + sizeof(size)), &length,
                reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), Z_BEST_SPEED);
  packed.resize(sizeof(size) + length);
  return status == Z_OK && packed.size() < bytes.size();
}

void unpack(std::span<const char> packed, std::string& bytes) {
  uint64_t size = 0;
  if (packed.size() < sizeof(size)) fail_encoded("a compressed part of a message", packed.size());
  std::memcpy(&size, packed.data(), sizeof(size));
  if (size > kMostUnpacked || size > packed.size() * kMostRatio) {
    fail_encoded("a compressed part of a message is too long", size);
  }
  bytes.resize(size);
  uLongf length = size;
  const int status = uncompress(reinterpret_cast<Bytef*>(bytes.data()), &length,
                                reinterpret_cast<const Bytef*>(packed.data() + sizeof(size)),
                                packed.size() - sizeof(size));
  if (status != Z_OK || length != size) {
    fail_encoded("a compressed part of a message does not decompress", packed.size());
  }
}

}  // namespace troika::server
