// Tells which ranks of this machine still run.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "troika/comm/lifeline.h"
#include "troika/comm/shm/segment.h"

namespace troika::comm::shm {

// Each rank holds a robust mutex in shared memory (pthread_mutexattr_setrobust). The kernel marks
// it as soon as the process is killed. The connections of the process close only when its memory is
// free again, which takes tens of milliseconds.
//
// The mutex belongs to a thread, and a program may end the thread that made its group. So a thread
// of this object holds it and sleeps. All functions may be called from any thread.
class Presence {
 public:
  static size_t bytes_for(int size);

  // This rank is present from here on. `segment` is zeroed, of bytes_for() the number of
  // `world_ranks`, and shared by them; this one stands at index `rank`.
  Presence(Segment segment, int rank, std::vector<int> world_ranks,
           std::shared_ptr<Lifeline> lifeline);
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  // The others do not take the end of this process for a death any more. Happens by itself when the
  // lifeline is cut, as the others then hear the cause from there.
  void part();

  // Throws what Lifeline::require_live() throws for a group with that tag space. A rank whose
  // process has ended before it parted is a loss. Does not block.
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
