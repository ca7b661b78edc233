// Owned file descriptors. The functions here open them with close-on-exec.
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

// An eventfd that lets one thread wake another thread's poll().
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

// Waits with poll() until one of `events` or the deadline. Returns false on the deadline. Throws
// Error(net, failure) if poll() fails.
bool wait_for(int fd, short events, Deadline deadline);

// Raises this process's limit on open files to `wanted`, or as far as permitted. Returns the
// resulting limit; 0 if unknown.
int64_t allow_descriptors(int64_t wanted);

// Returns the system's message for an errno in lower case, e.g. "connection refused".
std::string system_reason(int error);

// Throws Error(room, failure): `cannot <action>; got <system_reason(error)>`.
[[noreturn]] void fail_system(const std::string& room, const std::string& action, int error);

}  // namespace troika::net
