// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4), which TFRecord files carry; zlib has only
// the other CRC-32. Checkpoints carry it of all they hold.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika::train {

// Of `bytes` after those that `before` is the checksum of.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// Rotated and offset as TFRecord stores it, so that a checksum of data with checksums stays useful.
constexpr uint32_t masked_crc(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace troika::train
