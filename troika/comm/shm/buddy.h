// Tracks which parts of a process's shared memory are free.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace troika::comm::shm {

// A location in an arena that other ranks can find: the upper 24 bits are the segment number, from
// 1; the lower bits are the offset. 0 is null.
using Ref = uint64_t;
inline constexpr int kOffsetBits = 40;

// A buddy allocator (Knowlton, CACM 8(10), 1965): blocks are powers of two, aligned to their size,
// and two free halves merge into one block. It also counts the free bytes that still use physical
// memory. It does not access the memory. Not thread-safe.
class BuddyAllocator {
 public:
  static constexpr size_t kSmallestBlock = 256;
  static constexpr size_t kLargestBlock = size_t{1} << kOffsetBits;
  // Returns the size of the block that holds `bytes` bytes.
  static size_t block_size(size_t bytes);

  // Adds a free block without physical memory. `bytes` is a power of two, at least kSmallestBlock.
  void add(Ref ref, size_t bytes);
  // Takes a block of block_size(bytes) bytes. Returns nothing if no free block is large enough.
  std::optional<Ref> take(size_t bytes);
  // Frees a block; `bytes` is the argument of its take(). The block is assumed to use physical
  // memory.
  void give_back(Ref ref, size_t bytes);

  struct Block {
    Ref ref = 0;
    size_t bytes = 0;
  };
  // Returns the largest free block that uses physical memory and has at least `smallest` bytes, if
  // any. The caller must release its physical memory.
  std::optional<Block> evict(size_t smallest);

  // Free bytes that use physical memory, and taken bytes. Both count the sizes passed to take().
  size_t resident_free() const { return resident_free_; }
  size_t taken() const { return taken_; }

 private:
  static constexpr size_t kOrders = kOffsetBits + 1;
  static size_t order_of(size_t block);

  std::array<std::map<Ref, size_t>, kOrders> free_;  // resident bytes of each free block, by log2
                                                     // of its size
  size_t resident_free_ = 0;
  size_t taken_ = 0;
};

}  // namespace troika::comm::shm
