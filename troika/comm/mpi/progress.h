// Progress of messages during computation.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "troika/base/clock.h"

namespace troika::comm::mpi {

// A thread that progresses messages while the program's threads compute, for a transport that
// progresses only inside its calls. It polls every 50 us after a message has begun, then less and
// less often, down to once per millisecond. It sleeps while no message is in flight. It does
// nothing while another thread waits for a message, because that thread progresses all of them.
class Progress {
 public:
  // `is_busy` says whether any message is in flight; `drive` progresses messages, and returns
  // whether one has arrived. Neither may throw; both must stay callable until the destructor has
  // returned.
  Progress(std::function<bool()> is_busy, std::function<bool()> drive);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Reports that a message has begun. Cheap; may be called from any thread.
  void begun();

  // Held by a thread that progresses all messages itself.
  class Relief {
   public:
    explicit Relief(Progress* progress) : progress_(progress) {
      if (progress_) ++progress_->relieved_;
    }
    ~Relief() {
      if (progress_) --progress_->relieved_;
    }
    Relief(const Relief&) = delete;
    Relief& operator=(const Relief&) = delete;

   private:
    Progress* const progress_;
  };

 private:
  void run();

  const std::function<bool()> is_busy_;
  const std::function<bool()> drive_;
  std::atomic<int> relieved_ = 0;
  std::atomic<Clock::time_point> latest_ = Clock::time_point();  // when a message last began or
                                                                 // arrived
  std::atomic<bool> sleeps_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace troika::comm::mpi
