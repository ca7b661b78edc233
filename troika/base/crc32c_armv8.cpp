#include <arm_acle.h>

#include "troika/base/crc32c.h"

namespace troika::crc {

namespace {

struct Armv8 {
  static uint32_t add(uint32_t state, uint64_t word) { return __crc32cd(state, word); }
  static uint32_t add(uint32_t state, unsigned char byte) { return __crc32cb(state, byte); }
};

}  // namespace

uint32_t by_armv8(uint32_t state, const char* bytes, size_t size) {
  return by_instruction<Armv8>(state, bytes, size);
}

}  // namespace troika::crc
