// Owned file descriptors, all closed on exec.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <utility>

#include "troika/base/clock.h"

namespace troika::net {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read, write;
};
Pipe make_pipe();

// A counter that wakes a poll() from another thread.
class Waker {
 public:
  Waker();
  int fd() const { return event_.get(); }
  void wake() const;
  void clear() const;

 private:
  Descriptor event_;
};

void set_nonblocking(int fd);

// poll() on one descriptor until an event or the deadline; false when the deadline came first.
bool wait_for(int fd, short events, Deadline deadline);

// Raises this process's limit on open files to `wanted`, or as far as it may; what it is then.
int64_t allow_descriptors(int64_t wanted);

// "connection refused": the system's words for an errno, to stand inside a sentence.
std::string system_reason(int error);

// Throws Error(room, failure): `cannot <action>; got <the system's reason>`.
[[noreturn]] void fail_system(const std::string& room, const std::string& action, int error);

}  // namespace troika::net
