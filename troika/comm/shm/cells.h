// The layout of messages in shared memory: in a ring of cells, or in blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "troika/comm/shm/buddy.h"

namespace troika::comm::shm {

// The header before the bytes of a message in shared memory, in a cell or in a block of its
// sender's arena.
struct alignas(16) Envelope {
  // For a cell: see Cells. For a block: 1 after the message was received.
  std::atomic<uint64_t> stamp;
  uint64_t number;  // among all messages from its sender to its receiver
  Ref older;        // for a block: the next block in the list
  uint64_t bytes;
  uint32_t tag;
  bool is_cell;
  bool wants_receipt;  // whether the sender may wait until the message is received

  // For a cell: the bytes of the message.
  char* data() { return reinterpret_cast<char*>(this + 1); }
};
static_assert(sizeof(Envelope) == 48);

// A message in a block of its sender's arena. The bytes are streamed through a window behind this
// header; while the receiver keeps up, the window is reused, so both sides copy at the same time.
// If the receiver does not keep up, the sender leaves the remaining bytes in another block.
struct Block {
  // Sender and receiver copy pieces of this size at the same time, one piece apart.
  static constexpr size_t kPiece = size_t{32} << 10;
  static constexpr size_t kLargestWindow = 31 * kPiece;  // its block almost fills a power of two
  // A value of `rest`: the sender had no memory for the remaining bytes. No block of messages is
  // there.
  static constexpr Ref kBrokenOff = 1;

  // Returns the size of the window for a message of this many bytes.
  static uint64_t window(uint64_t bytes) { return std::clamp<uint64_t>(bytes, 1, kLargestWindow); }

  Envelope envelope;
  alignas(64) std::atomic<uint64_t> filled;   // bytes that the sender has written to the window
  alignas(64) std::atomic<uint64_t> drained;  // bytes that the receiver has read from the window
  alignas(64) std::atomic<Ref> rest;  // the bytes that are not sent through the window; 0: none yet

  char* data() { return reinterpret_cast<char*>(this + 1); }
};

// Message n of the ring is in cell n % kCount. The sender writes the message, then stamps the cell
// sent(n). The receiver stamps it taken(n) after reading the bytes. So each side accesses only the
// cell's own cache lines, and neither reads the other's position. A cell that is not taken blocks
// the ring; the sender must then send in another way. The memory must be zeroed at first.
class Cells {
 public:
  static constexpr uint64_t kCount = 8;
  static constexpr size_t kBytes = size_t{9} << 10;  // of a cell, envelope included
  static constexpr size_t kRoom = kBytes - sizeof(Envelope);

  static uint64_t sent(uint64_t n) { return 2 * n + 2; }
  static uint64_t taken(uint64_t n) { return 2 * n + 3; }

  Envelope& at(uint64_t n) { return *reinterpret_cast<Envelope*>(memory_[n % kCount]); }
  bool is_free(uint64_t n) { return at(n).stamp == (n < kCount ? 0 : taken(n - kCount)); }
  bool has(uint64_t n) { return at(n).stamp == sent(n); }
  // Whether the first `messages` messages of the ring were taken. Reads only cells that were used,
  // because reading the others would give them memory.
  bool all_taken(uint64_t messages) {
    for (uint64_t i = 0; i < std::min(messages, kCount); ++i) {
      if (at(i).stamp % 2 == 0) return false;
    }
    return true;
  }

 private:
  alignas(64) char memory_[kCount][kBytes];
};

}  // namespace troika::comm::shm
