// The shared memory that one process owns, and its view of the others'.
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

// A directory in shared memory tells where each rank's segments are; they are opened when first
// used and stay mapped until the arena goes. All functions may be called from any thread.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr size_t kMaxSegments = 4096;
  static constexpr size_t kKeptBytes = size_t{64} << 20;
  static size_t directory_bytes(int size);

  // `directory` is zeroed and shared by `size` ranks.
  Arena(Segment directory, int rank, int size, const std::shared_ptr<Lifeline>& lifeline);
  ~Arena();

  // Memory of so many bytes, zeroed or used before, until it is given back. It is aligned to its
  // size rounded up to a power of two, or to a page where that is less. Throws Error(failure) when
  // there is no more.
  struct Piece {
    char* data = nullptr;
    Ref ref = 0;
    size_t bytes = 0;
  };
  Piece take(size_t bytes);
  // Memory that is given back is used again. Its pages go back to the system while more than
  // kKeptBytes, and more than is taken, are free. Once the world is lost nothing is used again,
  // since a rank that was stopped may still write to it.
  void give_back(const Piece& piece);
  // Owns its piece, and keeps the arena.
  at::Tensor tensor(int64_t count, c10::ScalarType type);

  // Where others find this memory; 0 if it is not wholly inside one of this rank's segments.
  Ref locate(const void* data, size_t bytes) const;
  // Where a rank's memory is here. Throws Error(peer) when it cannot be opened.
  char* at(int rank, Ref ref);

 private:
  struct Entry;  // of the directory
  Entry& entry(int rank, size_t segment) const;
  void add_segment(size_t bytes);
  char* own(Ref ref) const;

  const Segment directory_;
  const int rank_;
  const std::weak_ptr<Lifeline> lifeline_;
  mutable std::mutex mutex_;
  std::vector<Segment> own_;
  BuddyAllocator free_;
  std::vector<std::vector<std::unique_ptr<Segment>>> others_;  // by rank and number
};

}  // namespace troika::comm::shm
