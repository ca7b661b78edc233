#include "troika/base/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "troika/base/crc32c.h"
#include "troika/base/random.h"

#ifdef TROIKA_CRC_ARMV8
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace troika {

static_assert(std::endian::native == std::endian::little, "words are loaded with low bytes first");

namespace crc {

namespace {

constexpr auto kByteTables = make_byte_tables();

using Kernel = uint32_t (*)(uint32_t state, const char* bytes, size_t size);

Kernel best_kernel() {
#ifdef TROIKA_CRC_SSE42
  if (__builtin_cpu_supports("sse4.2")) return by_sse42;
#endif
#ifdef TROIKA_CRC_ARMV8
  if (::getauxval(AT_HWCAP) & HWCAP_CRC32) return by_armv8;
#endif
  return by_table;
}

}  // namespace

// Processes eight bytes per iteration (Kounavis and Berry 2005, "A Systematic Approach to Building
// High Performance Software-based CRC Generators").
uint32_t by_table(uint32_t state, const char* bytes, size_t size) {
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t word = load_word(bytes) ^ state;
    state = 0;
    for (size_t i = 0; i < 8; ++i) state ^= kByteTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++bytes, --size) {
    state = (state >> 8) ^ kByteTables[0][(state ^ static_cast<unsigned char>(*bytes)) & 0xff];
  }
  return state;
}

}  // namespace crc

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  static const crc::Kernel kernel = crc::best_kernel();
  return ~kernel(~before, bytes.data(), bytes.size());
}

// The lanes are independent, so their multiplications overlap and the speed is limited by memory.
uint64_t fingerprint(std::string_view bytes) {
  constexpr size_t kLanes = 8;
  constexpr size_t kBlock = kLanes * sizeof(uint64_t);
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::array<uint64_t, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(i);
  const auto add_block = [&](const char* block) {
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i] = (lanes[i] ^ crc::load_word(block + i * sizeof(uint64_t))) * kOdd;
      lanes[i] ^= lanes[i] >> 32;
    }
  };
  uint64_t result = bytes.size();
  for (; bytes.size() >= kBlock; bytes.remove_prefix(kBlock)) add_block(bytes.data());
  std::array<char, kBlock> rest{};
  std::copy(bytes.begin(), bytes.end(), rest.begin());
  add_block(rest.data());
  for (const uint64_t lane : lanes) result = mix(result, lane);
  return result;
}

}  // namespace troika
