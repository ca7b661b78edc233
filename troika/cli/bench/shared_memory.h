// Memory shared by all ranks of a machine, with a barrier, independent of the code under test.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "troika/comm/group.h"

namespace troika::cli::bench {

// One part of memory for each rank, mapped by all ranks, page-aligned and initially zero. The ranks
// must be processes of one user on one machine.
class SharedMemory {
 public:
  // Called by all ranks of the group with the same `bytes`, the size of one part.
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

// A barrier that all ranks leave within about one cache-line transfer between cores, so that timed
// calls start together.
class SpinBarrier {
 public:
  explicit SpinBarrier(const comm::Group& group);

  // Blocks until all ranks have arrived, and returns rank 0's `decision`. Throws Error(timeout) if
  // a rank does not arrive within a minute.
  bool wait(bool decision = true);

 private:
  // In the part of each rank; fits in one cache line.
  struct Place {
    std::atomic<uint32_t> round;  // number of the rank's arrivals
    // Rank 0's decisions, for even and odd rounds: rank 0 may be one round ahead of ranks still
    // reading.
    std::atomic<bool> decisions[2];
  };
  Place& place(int rank) const;
  // Blocks until `rank` has arrived in the current round.
  void wait_for(int rank) const;

  const int rank_, size_;
  const uint64_t polls_before_yield_;
  const SharedMemory memory_;
  uint32_t round_ = 0;
};

}  // namespace troika::cli::bench
