// The event loop of an endpoint. Threads in run_until() drive it, one at a time. While there are
// none, the reactor's own thread does.
#pragma once

#include <atomic>
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

// A recursive mutex that knows whether threads wait for it.
class CountedMutex {
 public:
  void lock() {
    ++waiting_;
    mutex_.lock();
    --waiting_;
  }
  void unlock() { mutex_.unlock(); }
  bool is_wanted() const { return waiting_ > 0; }

 private:
  std::recursive_mutex mutex_;
  std::atomic<int> waiting_ = 0;
};

class Reactor {
 public:
  // Other timed work: `run` is called at the time of `deadline`, and after each wakeup of the loop.
  struct Chore {
    std::function<std::optional<Deadline>()> deadline;
    std::function<void()> run;
  };

  // `polls`: see TcpOptions.
  explicit Reactor(bool polls);
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Locks the endpoint's state. Callbacks run while the lock is held, and may lock it again. The
  // destructor wakes threads in run_until(), since the state may have changed.
  class Hold {
   public:
    explicit Hold(Reactor& reactor) : reactor_(reactor), lock_(reactor.mutex_) {}
    ~Hold() { reactor_.kick(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Reactor& reactor_;
    const std::lock_guard<CountedMutex> lock_;
  };

  // The next three functions require a Hold.
  Poller& poller() { return poller_; }
  void add_timer(Ticket ticket, Duration delay, std::function<void()> timer);
  bool cancel_timer(Ticket ticket);

  // See Endpoint::run_until.
  bool run_until(const std::function<bool()>& is_over, Duration at_most);
  // Starts the event loop. `chore` must stay valid until stop().
  void start(Chore chore);
  // Ends the event loop. No function is called afterwards.
  void stop();

 private:
  using Lock = std::unique_lock<CountedMutex>;

  void kick();
  void serve();
  bool poll(Lock& lock, const std::function<bool()>& is_over, Clock::time_point until);
  void drive(Lock& lock, Clock::time_point until, const std::function<bool()>* is_over);
  void run_timers();
  Clock::time_point next_time(Clock::time_point until) const;

  const Duration polling_;  // of run_until()
  CountedMutex mutex_;      // guards all members below
  std::condition_variable_any changed_;
  Poller poller_;
  const Waker waker_;
  std::multimap<Clock::time_point, std::pair<Ticket, std::function<void()>>> timers_;
  Chore chore_;
  int waiters_ = 0;           // number of threads in run_until()
  uint64_t ended_waits_ = 0;  // how often `waiters_` dropped to 0
  Clock::time_point waited_;  // when it last dropped to 0
  bool is_parked_ = false;    // thread_ sleeps until it drops to 0
  std::condition_variable_any unparked_;
  std::thread::id driver_;  // the thread that is in the poller or runs callbacks
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace troika::net
