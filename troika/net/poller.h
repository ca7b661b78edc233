// Waits on descriptors and calls a function for each that is ready.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>

#include "troika/net/descriptor.h"
#include "troika/net/endpoint.h"

namespace troika::net {

// wait() may run concurrently with the other functions. The other functions must be called by
// one thread at a time.
class Poller {
 public:
  // Called with the events of epoll_wait(2).
  using Ready = std::function<void(uint32_t events)>;
  using Events = std::array<epoll_event, 64>;

  Poller();

  // Watches until `fd` is readable or closed. Call remove() before closing `fd`. `is_hot`: whether
  // try_latest() may call `ready` for it.
  void add(int fd, Ready ready, bool is_hot = false);
  // Whether to watch for writability, too.
  void set_writes(int fd, bool writes);
  void remove(int fd);

  // Blocks until a descriptor is ready or `at_most` has passed (negative: no limit). Returns the
  // ready ones; none after a signal.
  std::span<const epoll_event> wait(Events& events, Duration at_most) const;
  // Calls the function of each ready descriptor, unless it was removed meanwhile.
  void dispatch(std::span<const epoll_event> events);
  // Calls the function of the hot descriptor that was ready last, which usually is the next one to
  // be ready, with EPOLLIN, whether it is ready or not. Returns false if there is none.
  bool try_latest() const;
  // Counts what the functions have done for their peers, as they report it: frames that have begun
  // or ended, and connections that have ended.
  uint64_t progress() const { return progress_; }
  void count_progress() { ++progress_; }

 private:
  struct Watched {
    Ready ready;
    bool is_hot = false;
  };

  Descriptor epoll_;
  std::unordered_map<int, std::shared_ptr<const Watched>> watched_;
  std::shared_ptr<const Watched> latest_;  // null: none, or removed
  uint64_t progress_ = 0;
};

}  // namespace troika::net
