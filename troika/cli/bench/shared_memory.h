// Memory that all ranks of one machine see, and a barrier in it: independent of what is measured.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "troika/comm/group.h"

namespace troika::cli::bench {

// A part of memory per rank, each mapped by all ranks, page-aligned and zero at first. The ranks
// must be processes of one user on one machine.
class SharedMemory {
 public:
  // Called by all ranks of the group with the same `bytes`, the size of each part.
  SharedMemory(const comm::Group& group, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* part(int rank) const { return parts_[static_cast<size_t>(rank)]; }

 private:
  void unmap();

  const size_t bytes_;
  std::vector<void*> parts_;
};

// Ranks leave within the time that a cache line takes from core to core, so what is timed after it
// begins together.
class SpinBarrier {
 public:
  explicit SpinBarrier(const comm::Group& group);

  // Blocks until all ranks have come, and returns what rank 0 gave. Throws Error(timeout) when one
  // has not come within a minute.
  bool wait(bool decision = true);

 private:
  // In the part of each rank, in one cache line.
  struct Place {
    std::atomic<uint32_t> round;  // how often the rank has come
    // Rank 0's, for even and odd rounds: it may be one round ahead of who still reads.
    std::atomic<bool> decisions[2];
  };
  Place& place(int rank) const;
  // Until `rank` has come to the present round.
  void wait_for(int rank) const;

  const int rank_, size_;
  const uint64_t polls_before_yield_;
  const SharedMemory memory_;
  uint32_t round_ = 0;
};

}  // namespace troika::cli::bench
