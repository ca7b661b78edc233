#include "troika/base/checksum.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "troika/base/crc32c.h"
#include "troika/base/random.h"

namespace troika {
namespace {

std::string random_bytes(size_t size) {
  Random random(7);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Computes the checksum bit by bit, from the definition.
uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t state = ~0u;
  for (const char byte : bytes) {
    state ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (state & 1 ? 0x82f63b78 : 0);
  }
  return ~state;
}

TEST(Checksum, IsThatOfTheStandard) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogues.
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  EXPECT_EQ(crc32c(down), 0x113fdb5cu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(masked_crc(0), 0xa282ead8u);
  EXPECT_EQ(masked_crc(0x00010000u), 0xa284ead8u - 0x20000u + 0x2u);
}

// Lengths below and above the blocks of the three parallel streams of the instruction.
TEST(Checksum, IsTheSameByTableAndByInstruction) {
  const std::string bytes = random_bytes(20'000);
  const size_t block = 3 * crc::kStreamBytes;
  for (const size_t start : {0, 1, 7}) {
    for (const size_t size : {size_t{1}, size_t{7}, size_t{8}, size_t{100}, block - 1, block,
                              block + 1, 2 * block, 5 * block + 13}) {
      const auto part = std::string_view(bytes).substr(start, size);
      const uint32_t expected = slow_crc32c(part);
      EXPECT_EQ(crc32c(part), expected) << start << " " << size;
      EXPECT_EQ(~crc::by_table(~0u, part.data(), part.size()), expected) << start << " " << size;
      const auto half = part.size() / 2;
      EXPECT_EQ(crc32c(part.substr(half), crc32c(part.substr(0, half))), expected) << size;
    }
  }
}

TEST(Fingerprint, DiffersForEveryBitAndLength) {
  std::set<uint64_t> seen;
  for (size_t size = 0; size < 200; ++size) seen.insert(fingerprint(std::string(size, '\0')));
  std::string bytes = random_bytes(150);
  seen.insert(fingerprint(bytes));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    seen.insert(fingerprint(bytes));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_EQ(seen.size(), 200 + 1 + 8 * bytes.size());
  EXPECT_EQ(fingerprint(bytes), fingerprint(random_bytes(150)));
}

}  // namespace
}  // namespace troika
