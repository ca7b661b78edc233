// Descriptors that a thread waits for, and what is to be done when they are ready.
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

// wait() may run beside the other functions; these want one caller at a time.
class Poller {
 public:
  // Gets the events of epoll_wait(2).
  using Ready = std::function<void(uint32_t events)>;
  using Events = std::array<epoll_event, 64>;

  Poller();

  // Waits until the descriptor can be read, or has ended. remove() it before it is closed.
  void add(int fd, Ready ready);
  // Whether to wait until it can be written, too.
  void set_writes(int fd, bool writes);
  void remove(int fd);

  // Blocks until some are ready, or as long as told; negative: without end. The ready ones.
  std::span<const epoll_event> wait(Events& events, Duration at_most) const;
  // Calls what belongs to each of them, unless it was removed meanwhile.
  void dispatch(std::span<const epoll_event> events) const;

 private:
  Descriptor epoll_;
  std::unordered_map<int, std::shared_ptr<const Ready>> ready_;
};

}  // namespace troika::net
