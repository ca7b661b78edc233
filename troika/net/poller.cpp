#include "troika/net/poller.h"

#include <cerrno>
#include <ctime>
#include <utility>

namespace troika::net {

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) fail_system("net", "make an epoll descriptor", errno);
}

void Poller::add(int fd, Ready ready, bool is_hot) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    fail_system("net", "wait for a descriptor", errno);
  }
  watched_[fd] = std::make_shared<const Watched>(std::move(ready), is_hot);
}

void Poller::set_writes(int fd, bool writes) {
  epoll_event event{.events = EPOLLIN | (writes ? EPOLLOUT : 0u), .data = {.fd = fd}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  if (latest_ == found->second) latest_ = nullptr;
  watched_.erase(found);
}

std::span<const epoll_event> Poller::wait(Events& events, Duration at_most) const {
  const auto nanoseconds = at_most.count();
  const timespec time{.tv_sec = nanoseconds / 1'000'000'000,
                      .tv_nsec = nanoseconds % 1'000'000'000};
  const int count = ::epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   nanoseconds < 0 ? nullptr : &time, nullptr);
  if (count < 0 && errno != EINTR) fail_system("net", "wait for descriptors", errno);
  return {events.data(), count < 0 ? 0 : static_cast<size_t>(count)};
}

void Poller::dispatch(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    const auto found = watched_.find(event.data.fd);
    if (found == watched_.end()) continue;
    // A copy, because the function may remove itself.
    const auto watched = found->second;
    if (watched->is_hot) latest_ = watched;
    watched->ready(event.events);
  }
}

bool Poller::try_latest() const {
  const auto latest = latest_;
  if (!latest) return false;
  latest->ready(EPOLLIN);
  return true;
}

}  // namespace troika::net
