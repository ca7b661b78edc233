// Received blocks of messages that are kept for later messages.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "troika/comm/shm/arena.h"

namespace troika::comm::shm {

// Keeps blocks by size. The block that was kept first is reused first, and a size that does not fit
// a cell is reused only after kRotatedBytes of it are kept. So a block has usually left the caches
// that belong to one core before it is written again. Writing memory that another core's own cache
// holds takes about three times as long as writing memory of the shared cache. All functions may be
// called from any thread.
class BlockPool {
 public:
  // More than the second-level caches of two cores hold.
  static constexpr size_t kRotatedBytes = size_t{4} << 20;
  static constexpr size_t kMostBytes = 2 * kRotatedBytes;
  // Larger blocks are not kept: while it is written, such a block leaves the core's cache anyway.
  static constexpr size_t kLargestBlock = size_t{512} << 10;

  // Returns the size of the block for this many bytes.
  static size_t block_size(size_t bytes);
  // Returns a kept block of this size, or nothing if a new one is needed.
  std::optional<Arena::Piece> take(size_t size);
  // Keeps a block. Returns false if it is too large or enough blocks are kept.
  bool keep(const Arena::Piece& block);
  std::vector<Arena::Piece> take_all();

 private:
  std::mutex mutex_;
  std::map<size_t, std::deque<Arena::Piece>> blocks_;  // by size
  size_t bytes_ = 0;                                   // of all blocks
};

}  // namespace troika::comm::shm
