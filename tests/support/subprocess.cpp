#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::testing_support {

namespace {

constexpr int kLimitMilliseconds = 240'000;
constexpr int kGraceMilliseconds = 2'000;

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool ends_within(pid_t child, int milliseconds) {
  const int watch = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  pollfd ended{.fd = watch, .events = POLLIN, .revents = 0};
  const bool in_time = ::poll(&ended, 1, milliseconds) == 1;
  ::close(watch);
  return in_time;
}

// Kills and counts the processes that are left. As a subreaper, this process inherits every orphan.
int reap_orphans() {
  int found = 0;
  while (true) {
    const std::string path = "/proc/self/task/" + std::to_string(::gettid()) + "/children";
    const std::string children = read_file(path);
    if (children.empty()) return found;
    const pid_t child = std::stoi(children);
    // A process that is ending by itself, such as MPI's daemon, is not a leftover.
    if (!ends_within(child, kGraceMilliseconds)) {
      ++found;
      ::kill(child, SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace

Outcome run_program(const std::string& command) {
  const TemporaryFolder folder;
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw std::runtime_error("no subreaper");
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(::open((folder / "out").c_str(), O_WRONLY | O_CREAT, 0600), 1);
    ::dup2(::open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600), 2);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(126);
  }
  Outcome outcome;
  const bool in_time = ends_within(child, kLimitMilliseconds);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  outcome.exit_code = in_time ? exit_code(status) : -1;
  outcome.orphans = reap_orphans();
  outcome.out = read_file(folder / "out");
  outcome.err = read_file(folder / "err");
  return outcome;
}

}  // namespace troika::testing_support
