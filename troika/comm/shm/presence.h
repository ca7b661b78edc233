// Detects which ranks of this machine are still running.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "troika/comm/diagnostics/lifeline.h"
#include "troika/comm/shm/segment.h"

namespace troika::comm::shm {

// Detects the death of a rank's process. Each rank holds a robust mutex in shared memory
// (pthread_mutexattr_setrobust), which the kernel marks as soon as the process is killed. The
// connections of the process close only after its memory has been freed, tens of milliseconds
// later.
//
// A mutex belongs to a thread, and a program may end the thread that made its group. Therefore a
// separate thread of this object holds the mutex and sleeps. All functions may be called from any
// thread.
class Presence {
 public:
  static size_t bytes_for(int size);

  // Marks this rank as present. `segment` is zeroed, has bytes_for(world_ranks.size()) bytes, and
  // is shared by `world_ranks`; this rank is at index `rank`.
  Presence(Segment segment, int rank, std::vector<int> world_ranks,
           std::shared_ptr<Lifeline> lifeline);
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  // After this call the other ranks do not treat the end of this process as a death. Called
  // automatically when the lifeline is cut, because the others then get the cause from the
  // lifeline.
  void part();

  // Throws what Lifeline::require_live() throws for a group with that tag space. Also throws if the
  // process of a rank ended before it called part(). Does not block.
  void require_all(uint32_t tag_space) const;

 private:
  struct Place;
  Place& place(size_t index) const;
  bool is_dead(size_t index) const;
  void hold();

  const Segment segment_;
  const size_t rank_;
  const std::vector<int> world_ranks_;
  const std::shared_ptr<Lifeline> lifeline_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;  // guarded by mutex_
  std::thread holder_;
};

}  // namespace troika::comm::shm
