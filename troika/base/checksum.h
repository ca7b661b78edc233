// Checksums and fingerprints of bytes.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika {

// Returns the CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4) of `bytes`. `before` is the
// CRC-32C of the preceding bytes, for checksums over several pieces. Used by checkpoints and
// TFRecord files; zlib only provides the other CRC-32. Uses the processor's CRC instruction where
// it has one.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// Rotates and offsets a CRC as TFRecord stores it. Masking keeps a CRC over data that contains CRCs
// meaningful.
constexpr uint32_t masked_crc(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// Returns a 64-bit fingerprint: equal for equal bytes; different bytes collide with probability
// 2^-64. Not cryptographic: collisions can be constructed. The result is the same on all
// little-endian machines; Troika does not support others.
uint64_t fingerprint(std::string_view bytes);

}  // namespace troika
