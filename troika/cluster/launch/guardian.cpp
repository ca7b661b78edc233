#include "troika/cluster/launch/guardian.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "troika/cluster/ranks/process.h"

namespace troika::cluster {

namespace {

constexpr pid_t kExit = 0;
// More descriptors than a launcher has open before it starts ranks.
constexpr int kDescriptors = 4096;

// Runs after fork() without exec, possibly of a multithreaded process: only async-signal-safe calls
// and no allocation. Signals stay blocked, so that signals for the launcher do not end this
// process.
[[noreturn]] void stand_guard(int pipe, pid_t* groups, size_t room) {
  // Closes the launcher's end of the pipe, and connections whose end the peers must notice.
  for (int fd = STDERR_FILENO + 1; fd < kDescriptors; ++fd) {
    if (fd != pipe) ::close(fd);
  }
  ::setpgid(0, 0);
  size_t count = 0;
  while (true) {
    pid_t group = 0;
    const ssize_t got = ::read(pipe, &group, sizeof(group));
    if (got < 0 && errno == EINTR) continue;
    if (got == static_cast<ssize_t>(sizeof(group))) {
      if (group == kExit) ::_exit(0);
      if (count < room) groups[count++] = group;
      continue;
    }
    for (size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
    ::_exit(0);
  }
}

}  // namespace

Guardian::Guardian(int max_groups) {
  std::vector<pid_t> groups(static_cast<size_t>(max_groups));
  net::Pipe pipe = net::make_pipe();
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  const int error = errno;
  if (pid_ == 0) stand_guard(pipe.read.get(), groups.data(), groups.size());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) net::fail_system("cluster", "start a process", error);
  ::setpgid(pid_, pid_);  // not affected by Ctrl-C in the terminal
  pipe_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  watch(kExit);
  reap(pid_);
}

void Guardian::watch(pid_t group) const {
  // A write of four bytes to a pipe is atomic. Errors are ignored: the launch continues without a
  // guardian.
  [[maybe_unused]] const auto told = ::write(pipe_.get(), &group, sizeof(group));
}

}  // namespace troika::cluster
