// Which parts of a process's shared memory are free.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace troika::comm::shm {

// A place in an arena that other ranks can find: the number of a segment, from 1, in the upper 24
// bits, the offset in it below. 0 is nowhere.
using Ref = uint64_t;
inline constexpr int kOffsetBits = 40;

// A buddy allocator (Knowlton, CACM 8(10), 1965): blocks are powers of two, aligned to their size,
// and two free halves become one block again. It also counts the free bytes that still take
// physical memory. It touches no memory itself. Not thread-safe.
class BuddyAllocator {
 public:
  static constexpr size_t kSmallestBlock = 256;
  static constexpr size_t kLargestBlock = size_t{1} << kOffsetBits;
  // The size of the block that holds so many bytes.
  static size_t block_size(size_t bytes);

  // Adds a free block without physical memory. `bytes` is a power of two, at least kSmallestBlock.
  void add(Ref ref, size_t bytes);
  // A block of block_size(bytes) bytes, or nothing if no free one is large enough.
  std::optional<Ref> take(size_t bytes);
  // `bytes` is what was given to take(). The block is taken to be in physical memory.
  void give_back(Ref ref, size_t bytes);

  struct Block {
    Ref ref = 0;
    size_t bytes = 0;
  };
  // The largest free block that is in physical memory, if it has at least so many bytes: the caller
  // takes it out of it.
  std::optional<Block> evict(size_t smallest);

  // Free bytes that take physical memory, and bytes taken. Sizes as they were asked for.
  size_t resident_free() const { return resident_free_; }
  size_t taken() const { return taken_; }

 private:
  static constexpr size_t kOrders = kOffsetBits + 1;
  static size_t order_of(size_t block);

  std::array<std::map<Ref, size_t>, kOrders> free_;  // resident bytes of each, by log2 of the size
  size_t resident_free_ = 0;
  size_t taken_ = 0;
};

}  // namespace troika::comm::shm
