#include "troika/comm/mpi/progress.h"

#include <algorithm>
#include <utility>

namespace troika::comm::mpi {

namespace {

constexpr std::chrono::microseconds kShortest{50};
constexpr std::chrono::microseconds kLongest{1000};
// How long after a message began or arrived it polls at the highest rate.
constexpr Milliseconds kLively{20};

}  // namespace

Progress::Progress(std::function<bool()> is_busy, std::function<bool()> drive)
    : is_busy_(std::move(is_busy)), drive_(std::move(drive)), thread_([this] { run(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Progress::begun() {
  latest_ = Clock::now();
  if (!sleeps_) return;
  // The lock ensures that the thread, if it has just found nothing in flight, is already waiting
  // and gets the notification.
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

void Progress::run() {
  auto pause = kShortest;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    sleeps_ = true;
    changed_.wait(lock, [&] { return ends_ || is_busy_(); });
    sleeps_ = false;
    changed_.wait_for(lock, pause, [&] { return ends_; });
    if (ends_) return;
    lock.unlock();
    if (relieved_ == 0 && drive_()) latest_ = Clock::now();
    pause = Clock::now() - latest_.load() < kLively ? kShortest : std::min(2 * pause, kLongest);
    lock.lock();
  }
}

}  // namespace troika::comm::mpi
