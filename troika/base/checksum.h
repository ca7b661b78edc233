// Checksums and fingerprints of bytes.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika {

// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4) of `bytes`, going on from the checksum
// `before` of the bytes in front of them. Checkpoints and TFRecord files carry it; zlib has only
// the other CRC-32. Uses the processor's own instruction where there is one.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// Rotated and offset as TFRecord stores it, so that a checksum of data with checksums stays useful.
constexpr uint32_t masked_crc(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// 64 bits that are equal for equal bytes, and for other bytes with a probability of 2^-64; not
// against somebody who looks for bytes with equal ones. They are the same on all machines of one
// byte order.
uint64_t fingerprint(std::string_view bytes);

}  // namespace troika
