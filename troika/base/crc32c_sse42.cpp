#include <nmmintrin.h>

#include "troika/base/crc32c.h"

namespace troika::crc {

namespace {

struct Sse42 {
  static uint32_t add(uint32_t state, uint64_t word) {
    return static_cast<uint32_t>(_mm_crc32_u64(state, word));
  }
  static uint32_t add(uint32_t state, unsigned char byte) { return _mm_crc32_u8(state, byte); }
};

}  // namespace

uint32_t by_sse42(uint32_t state, const char* bytes, size_t size) {
  return by_instruction<Sse42>(state, bytes, size);
}

}  // namespace troika::crc
