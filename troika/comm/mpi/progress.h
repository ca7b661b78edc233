// Progress of messages beside computation.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "troika/base/clock.h"

namespace troika::comm::mpi {

// A thread that moves messages while the program's threads compute, for a transport that moves them
// only while it is called. It looks every 50 us for a while after something has begun, then less
// and less often, down to every millisecond; and sleeps where nothing is under way. While another
// thread waits for a message, and so moves all of them, this one does nothing.
class Progress {
 public:
  // `is_busy` says whether anything is under way; `drive` moves it, and returns whether something
  // has come. Neither may throw; both must stay callable until the destructor has returned.
  Progress(std::function<bool()> is_busy, std::function<bool()> drive);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Something has begun. Cheap; from any thread.
  void begun();

  // Held by a thread that moves all messages itself.
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
  std::atomic<Clock::time_point> latest_ = Clock::time_point();  // when something began or came
  std::atomic<bool> sleeps_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace troika::comm::mpi
