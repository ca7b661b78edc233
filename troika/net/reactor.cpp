#include "troika/net/reactor.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace troika::net {

namespace {

// A thread that has left run_until() usually returns soon. The reactor's own thread stays inactive
// for this time, because handing over between two threads costs more than a message.
constexpr Milliseconds kHoldOff{1};
constexpr std::chrono::hours kLongestWait{1};
// run_until() polls for this long before it sleeps, because waking a thread takes longer than a
// message.
constexpr std::chrono::microseconds kPolling{50};

}  // namespace

Reactor::Reactor(bool polls) : polling_(polls ? kPolling : Duration(0)) {
  poller_.add(waker_.fd(), [this](uint32_t) { waker_.clear(); });
}

Reactor::~Reactor() {
  stop();
}

void Reactor::start(Chore chore) {
  chore_ = std::move(chore);
  thread_ = std::thread([this] { serve(); });
}

void Reactor::stop() {
  {
    const Hold hold(*this);
    stops_ = true;
    waker_.wake();
    unparked_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Reactor::kick() {
  if (driver_ == std::this_thread::get_id()) return;
  if (waiters_ == 0) return;
  if (driver_ != std::thread::id()) waker_.wake();
  if (waiters_ > 1) changed_.notify_all();
}

void Reactor::add_timer(Ticket ticket, Duration delay, std::function<void()> timer) {
  const auto place =
      timers_.emplace(Deadline::after(delay).at(), std::pair(ticket, std::move(timer)));
  // The driving thread must now wait for a shorter time.
  if (place == timers_.begin() && driver_ != std::this_thread::get_id()) waker_.wake();
}

bool Reactor::cancel_timer(Ticket ticket) {
  return std::erase_if(timers_, [&](const auto& t) { return t.second.first == ticket; }) > 0;
}

Duration Reactor::time_to_wait(Clock::time_point until) const {
  if (!timers_.empty()) until = std::min(until, timers_.begin()->first);
  if (const auto chore = chore_.deadline()) until = std::min(until, chore->at());
  return std::clamp<Duration>(until - Clock::now(), Duration(0), kLongestWait);
}

void Reactor::run_timers() {
  while (!timers_.empty() && timers_.begin()->first <= Clock::now()) {
    const auto timer = std::move(timers_.begin()->second.second);
    timers_.erase(timers_.begin());
    timer();
  }
}

std::span<const epoll_event> Reactor::await_events(Poller::Events& events, Duration at_most,
                                                   Duration polling) const {
  const auto start = Clock::now();
  const auto spent = [&] { return Clock::now() - start; };
  while (polling > Duration(0) && spent() < std::min(at_most, polling)) {
    if (const auto ready = poller_.wait(events, Duration(0)); !ready.empty()) return ready;
  }
  const Duration left = polling > Duration(0) ? at_most - spent() : at_most;
  return poller_.wait(events, std::max(left, Duration(0)));
}

void Reactor::drive(Lock& lock, Clock::time_point until, Duration polling) {
  driver_ = std::this_thread::get_id();
  const Duration at_most = time_to_wait(until);
  Poller::Events events;
  lock.unlock();
  const auto ready = await_events(events, at_most, polling);
  lock.lock();
  poller_.dispatch(ready);
  run_timers();
  chore_.run();
  driver_ = {};
  if (waiters_ > 0) changed_.notify_all();
}

bool Reactor::run_until(const std::function<bool()>& is_over, Duration at_most) {
  const auto until = Deadline::after(at_most).at();
  Lock lock(mutex_);
  if (is_over()) return true;
  ++waiters_;
  // Wakes the reactor's own thread, so that this thread can drive instead.
  if (driver_ == thread_.get_id()) waker_.wake();
  bool over = false;
  while (!(over = is_over()) && Clock::now() < until) {
    if (driver_ != std::thread::id()) {
      changed_.wait_until(lock, std::min(until, Clock::now() + kLongestWait));
    } else {
      drive(lock, until, polling_);
    }
  }
  if (--waiters_ > 0) {
    changed_.notify_all();
    return over;
  }
  waited_ = Clock::now();
  ++ended_waits_;
  if (is_parked_) unparked_.notify_one();
  return over;
}

void Reactor::serve() {
  Lock lock(mutex_);
  while (!stops_) {
    const bool others_wait = waiters_ > 0;
    if (!others_wait && Clock::now() - waited_ >= kHoldOff) {
      drive(lock, Clock::time_point::max(), Duration(0));
      continue;
    }
    const uint64_t ended = ended_waits_;
    lock.unlock();
    std::this_thread::sleep_for(kHoldOff);
    lock.lock();
    // Parks only if the same wait is still running: after a short wait, waking this thread would
    // cost more than the wait itself.
    if (!others_wait || ended_waits_ != ended) continue;
    is_parked_ = true;
    unparked_.wait(lock, [this] { return stops_ || waiters_ == 0; });
    is_parked_ = false;
  }
}

}  // namespace troika::net
