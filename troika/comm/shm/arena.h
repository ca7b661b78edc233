// The shared memory that one process owns, and its mappings of the other processes' memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "troika/comm/shm/board.h"
#include "troika/comm/shm/buddy.h"
#include "troika/comm/shm/segment.h"

namespace troika::comm::shm {

// Allocates shared memory of this rank and maps that of the other ranks. A directory in shared
// memory lists each rank's segments; they are opened at first use and stay mapped until the arena
// is destroyed. All functions may be called from any thread.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr size_t kMaxSegments = 4096;
  static constexpr size_t kKeptBytes = size_t{64} << 20;
  static size_t directory_bytes(int size);

  // `directory` is zeroed and shared by `size` ranks.
  Arena(Segment directory, int rank, int size, const std::shared_ptr<Lifeline>& lifeline);
  ~Arena();

  // Allocates `bytes` bytes until give_back(); they are zeroed or hold old data. The memory is
  // aligned to its size rounded up to a power of two, or to a page if that is less. Throws
  // Error(failure) when the memory is exhausted.
  struct Piece {
    char* data = nullptr;
    Ref ref = 0;
    size_t bytes = 0;
  };
  Piece take(size_t bytes);
  // Frees memory for reuse. Its pages are returned to the system while the free bytes exceed both
  // the kept and the allocated bytes. kKeptBytes are kept, and as many more as were returned and
  // soon taken again, since the system must clear each page that it gives out. After the world is
  // lost nothing is reused, because a rank that was stopped may still write to it.
  void give_back(const Piece& piece);
  // Returns a tensor that owns its piece and keeps the arena alive.
  at::Tensor tensor(int64_t count, c10::ScalarType type);

  // Returns where other ranks find this memory; 0 if it is not wholly inside one of this rank's
  // segments.
  Ref locate(const void* data, size_t bytes) const;
  // Returns the address of `bytes` bytes of a rank's memory in this process. Throws Error(peer)
  // when the memory cannot be opened, and when they are not wholly inside one of the rank's
  // segments.
  char* at(int rank, Ref ref, size_t bytes);

 private:
  struct Entry;  // of the directory
  Entry& entry(int rank, size_t segment) const;
  void add_segment(size_t bytes);
  // Notes a call of take(). `resident` of its `bytes` still used physical memory.
  void note_taken(size_t bytes, size_t resident);
  char* own(Ref ref) const;
  const Segment& segment_at(int rank, Ref ref, std::unique_lock<std::mutex>& lock);

  const Segment directory_;
  const int rank_;
  const std::weak_ptr<Lifeline> lifeline_;
  mutable std::mutex mutex_;
  std::vector<Segment> own_;
  BuddyAllocator free_;
  size_t kept_ = kKeptBytes;
  size_t evicted_ = 0;  // bytes since the last time that none of them was soon taken again
  int takes_ = 0;       // since the last eviction
  std::vector<std::vector<std::unique_ptr<Segment>>> others_;  // by rank and segment number
};

}  // namespace troika::comm::shm
