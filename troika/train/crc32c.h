// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4), which TFRecord files carry; zlib has only
// the other CRC-32. Checkpoints carry it of their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace troika::train {

// Of `bytes` after those that `before` is the checksum of.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// What tells a file from a damaged one.
struct FileDigest {
  int64_t bytes = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileDigest&) const = default;
};

// Reads the whole file; throws Error when it cannot.
FileDigest digest_of(const std::filesystem::path& file);

// Rotated and offset as TFRecord stores it, so that a checksum of data with checksums stays useful.
constexpr uint32_t masked_crc(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace troika::train
