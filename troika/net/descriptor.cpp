#include "troika/net/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <limits>
#include <system_error>

#include "troika/base/error.h"

namespace troika::net {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("net", "make a pipe", errno);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Waker::Waker() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) fail_system("net", "make an event descriptor", errno);
}

void Waker::wake() const {
  const uint64_t one = 1;
  // Fails only if the counter is full; then the event is already set.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

void Waker::clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof(count));
}

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int64_t left =
        std::min<int64_t>(deadline.left().count(), std::numeric_limits<int>::max());
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail_system("net", "wait for a descriptor", errno);
    if (deadline.passed()) return false;
  }
}

int64_t allow_descriptors(int64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const auto enough = static_cast<rlim_t>(wanted);
  if (limit.rlim_cur < enough && limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(enough, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  constexpr rlim_t kLargest = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(limit.rlim_cur, kLargest));
}

std::string system_reason(int error) {
  std::string text = std::generic_category().message(error);
  text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

void fail_system(const std::string& room, const std::string& action, int error) {
  throw Error(room, ErrorKind::failure,
              {.what = fmt::format("cannot {}", action), .got = system_reason(error)});
}

}  // namespace troika::net
