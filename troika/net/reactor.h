// Who waits for descriptors and calls what they are ready for: threads that wait in run_until(),
// one of them at a time, and a thread of its own while there are none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "troika/base/clock.h"
#include "troika/net/endpoint.h"
#include "troika/net/poller.h"

namespace troika::net {

class Reactor {
 public:
  // Something else that waits for a time: when, and what is called then, and whenever else it was
  // woken.
  struct Chore {
    std::function<std::optional<Deadline>()> deadline;
    std::function<void()> run;
  };

  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Held while anything of the endpoint is used; callbacks run under it, and may take it again.
  // Its end tells who waits that something may have changed.
  class Hold {
   public:
    explicit Hold(Reactor& reactor) : reactor_(reactor), lock_(reactor.mutex_) {}
    ~Hold() { reactor_.kick(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Reactor& reactor_;
    const std::lock_guard<std::recursive_mutex> lock_;
  };

  // Under a Hold.
  Poller& poller() { return poller_; }
  void add_timer(Ticket ticket, Duration delay, std::function<void()> timer);
  bool cancel_timer(Ticket ticket);

  // As Endpoint::run_until.
  bool run_until(const std::function<bool()>& is_over, Duration at_most);
  // Begins to call what is ready. `chore` must stay until stop().
  void start(Chore chore);
  // Nothing is called after it.
  void stop();

 private:
  using Lock = std::unique_lock<std::recursive_mutex>;

  void kick();
  void serve();
  void drive(Lock& lock, Clock::time_point until, bool polls);
  std::span<const epoll_event> await_events(Poller::Events& events, Duration at_most,
                                            bool polls) const;
  void run_timers();
  Duration time_to_wait(Clock::time_point until) const;

  std::recursive_mutex mutex_;  // guards all below
  std::condition_variable_any changed_;
  Poller poller_;
  const Waker waker_;
  std::multimap<Clock::time_point, std::pair<Ticket, std::function<void()>>> timers_;
  Chore chore_;
  int waiters_ = 0;           // threads in run_until()
  uint64_t ended_waits_ = 0;  // how often the last of them left
  Clock::time_point waited_;  // when it did so last
  bool is_parked_ = false;    // thread_ sleeps until it does
  std::condition_variable_any unparked_;
  std::thread::id driver_;  // who waits in the poller, or calls what is ready
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace troika::net
