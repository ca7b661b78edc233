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
// While frames keep coming, it polls for this long before it runs the chore again.
constexpr Milliseconds kLongestPolling{1};

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

// Returns when the loop must continue at the latest.
Clock::time_point Reactor::next_time(Clock::time_point until) const {
  if (!timers_.empty()) until = std::min(until, timers_.begin()->first);
  if (const auto chore = chore_.deadline()) until = std::min(until, chore->at());
  return until;
}

void Reactor::run_timers() {
  while (!timers_.empty() && timers_.begin()->first <= Clock::now()) {
    const auto timer = std::move(timers_.begin()->second.second);
    timers_.erase(timers_.begin());
    timer();
  }
}

// Reads without sleeping, until `is_over`, until a timer or the chore is due, or until nothing has
// come for the time of polling. Ends earlier if something has come that other threads may wait for.
// Returns false if `is_over` is false and nothing has come: only then the caller may sleep at once.
// The descriptor that was ready last is read at once, without asking the poller whether it is
// ready, except when it is the others' turn.
bool Reactor::poll(Lock& lock, const std::function<bool()>& is_over, Clock::time_point until) {
  constexpr int kTurns = 4;
  Poller::Events events;
  bool came = false;
  // As outside of callbacks, what `is_over` starts or ends must wake the threads that wait for it.
  const auto ask = [&] {
    const auto driver = std::exchange(driver_, {});
    const bool over = is_over();
    driver_ = driver;
    return over;
  };
  auto now = Clock::now();
  auto end = now + polling_;
  until = std::min(until, now + kLongestPolling);
  // Callbacks and other threads may add timers meanwhile.
  while (now < std::min(end, next_time(until))) {
    const uint64_t before = poller_.progress();
    for (int turn = 1; turn <= kTurns; ++turn) {
      if (turn == kTurns || mutex_.is_wanted() || !poller_.try_latest()) {
        turn = kTurns;
        lock.unlock();
        const auto ready = poller_.wait(events, Duration(0));
        lock.lock();
        poller_.dispatch(ready);
        came = came || !ready.empty();
      }
      came = came || poller_.progress() != before;
      if (ask() || (came && waiters_ > 1)) return true;
    }
    now = Clock::now();
    if (poller_.progress() != before) end = now + polling_;
  }
  return came;
}

// Reads, runs timers and the chore, and notifies the other threads. Sleeps until something comes
// unless `is_over`, or unless something has come before.
void Reactor::drive(Lock& lock, Clock::time_point until, const std::function<bool()>* is_over) {
  driver_ = std::this_thread::get_id();
  const bool polls = is_over && polling_ > Duration(0);
  if (!polls || !poll(lock, *is_over, until)) {
    Poller::Events events;
    const Duration left = next_time(until) - Clock::now();
    lock.unlock();
    const auto ready = poller_.wait(events, std::clamp<Duration>(left, Duration(0), kLongestWait));
    lock.lock();
    poller_.dispatch(ready);
  }
  run_timers();
  chore_.run();
  driver_ = {};
  if (waiters_ > (is_over ? 1 : 0)) changed_.notify_all();
}

bool Reactor::run_until(const std::function<bool()>& is_over, Duration at_most) {
  const auto until = Deadline::after(at_most).at();
  Lock lock(mutex_);
  if (is_over()) {
    // It may have changed what other threads wait for (act_on()).
    kick();
    return true;
  }
  ++waiters_;
  // Wakes the reactor's own thread, so that this thread can drive instead.
  if (driver_ == thread_.get_id()) waker_.wake();
  bool over = false;
  while (!(over = is_over()) && Clock::now() < until) {
    if (driver_ != std::thread::id()) {
      changed_.wait_until(lock, std::min(until, Clock::now() + kLongestWait));
    } else {
      drive(lock, until, &is_over);
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
      drive(lock, Clock::time_point::max(), nullptr);
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
