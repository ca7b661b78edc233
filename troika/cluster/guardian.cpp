#include "troika/cluster/guardian.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "troika/cluster/process.h"

namespace troika::cluster {

namespace {

constexpr pid_t kGoHome = 0;
// More than a launcher has open before it starts ranks.
constexpr int kDescriptors = 4096;

// A process without exec in what may have been many threads: async-signal-safe calls only, and no
// allocation. Signals stay blocked, so that none meant for the launcher ends it.
[[noreturn]] void stand_guard(int pipe, pid_t* groups, size_t room) {
  // The launcher's end of the pipe among them, and connections whose ends others are to see.
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
      if (group == kGoHome) ::_exit(0);
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
  ::setpgid(pid_, pid_);  // out of reach of the terminal's Ctrl-C
  pipe_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  watch(kGoHome);
  reap(pid_);
}

void Guardian::watch(pid_t group) const {
  // Four bytes go into a pipe whole or not at all; a dead guardian is no reason to stop.
  [[maybe_unused]] const auto told = ::write(pipe_.get(), &group, sizeof(group));
}

}  // namespace troika::cluster
