// The loops behind crc32c(). They operate on the CRC register, the bitwise complement of the
// checksum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace troika::crc {

// All three return the register after `size` bytes.
uint32_t by_table(uint32_t state, const char* bytes, size_t size);
// Require SSE4.2 and ARMv8's CRC32 extension, respectively.
uint32_t by_sse42(uint32_t state, const char* bytes, size_t size);
uint32_t by_armv8(uint32_t state, const char* bytes, size_t size);

inline constexpr uint32_t kReversedPolynomial = 0x82f63b78;

using Table = std::array<uint32_t, 256>;

// Table k maps a byte value to its effect on the register when k bytes follow.
constexpr std::array<Table, 8> make_byte_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kReversedPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t row = 1; row < tables.size(); ++row) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[row - 1][byte];
      tables[row][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

// The CRC instruction has a latency of three cycles and a throughput of one per cycle. Three
// independent streams of this many bytes (a power of two) hide the latency. The streams are short
// enough for the hardware prefetcher to treat them as one sequential read.
inline constexpr size_t kStreamBytes = 256;

// Table k maps byte k of the register (lowest first) to its effect after kStreamBytes zero bytes.
// Appending zeros is linear over GF(2), so the matrix for 2n zeros is the square of that for n.
constexpr std::array<Table, 4> make_stream_tables() {
  using Matrix = std::array<uint32_t, 32>;  // column k: the register for input bit k
  const auto times = [](const Matrix& matrix, uint32_t state) {
    uint32_t sum = 0;
    for (size_t bit = 0; state != 0; ++bit, state >>= 1) sum ^= state & 1 ? matrix[bit] : 0;
    return sum;
  };
  const Table byte = make_byte_tables()[0];
  Matrix zeros{};
  for (size_t bit = 0; bit < 32; ++bit) {
    const uint32_t state = uint32_t{1} << bit;
    zeros[bit] = (state >> 8) ^ byte[state & 0xff];
  }
  for (size_t count = 1; count < kStreamBytes; count *= 2) {
    Matrix square{};
    for (size_t bit = 0; bit < 32; ++bit) square[bit] = times(zeros, zeros[bit]);
    zeros = square;
  }
  std::array<Table, 4> tables{};
  for (size_t row = 0; row < tables.size(); ++row) {
    for (uint32_t value = 0; value < 256; ++value) {
      tables[row][value] = times(zeros, value << (8 * row));
    }
  }
  return tables;
}

inline constexpr auto kStreamTables = make_stream_tables();

inline uint32_t after_stream(uint32_t state) {
  return kStreamTables[0][state & 0xff] ^ kStreamTables[1][(state >> 8) & 0xff] ^
         kStreamTables[2][(state >> 16) & 0xff] ^ kStreamTables[3][state >> 24];
}

inline uint64_t load_word(const char* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Instruction::add(state, value) must process a word of 8 bytes or a single byte.
template <typename Instruction>
uint32_t by_instruction(uint32_t state, const char* bytes, size_t size) {
  constexpr size_t kWord = sizeof(uint64_t);
  for (; size >= 3 * kStreamBytes; bytes += 3 * kStreamBytes, size -= 3 * kStreamBytes) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < kStreamBytes; i += kWord) {
      state = Instruction::add(state, load_word(bytes + i));
      second = Instruction::add(second, load_word(bytes + kStreamBytes + i));
      third = Instruction::add(third, load_word(bytes + 2 * kStreamBytes + i));
    }
    state = after_stream(after_stream(state) ^ second) ^ third;
  }
  for (; size >= kWord; bytes += kWord, size -= kWord) {
    state = Instruction::add(state, load_word(bytes));
  }
  for (; size > 0; ++bytes, --size) {
    state = Instruction::add(state, static_cast<unsigned char>(*bytes));
  }
  return state;
}

}  // namespace troika::crc
