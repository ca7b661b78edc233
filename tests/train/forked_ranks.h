// Ranks that are processes forked from a test, which starts them ten times faster than a program.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <vector>

#include "troika/base/clock.h"

namespace troika::train {

// The processes of a run between two starts. Make it before any thread is started.
class Life {
 public:
  Life(int ranks, const std::function<void(int rank)>& body) {
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        body(rank);
        ::_exit(1);
      }
      pids_.push_back(pid);
      descriptors_.push_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
  }
  ~Life() {
    for (const int descriptor : descriptors_) ::close(descriptor);
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // Whether rank 0 ends within this time.
  bool ends_within(Milliseconds time) const {
    pollfd entry{descriptors_[0], POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(time.count())) > 0;
  }
  // Whether the ranks from `first` to below `end` end before the deadline.
  bool end_before(Deadline deadline, size_t first, size_t end) const {
    for (size_t i = first; i < end; ++i) {
      pollfd entry{descriptors_[i], POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(deadline.left().count())) <= 0) return false;
    }
    return true;
  }
  void kill(int rank, int signal = SIGKILL) const {
    ::kill(pids_[static_cast<size_t>(rank)], signal);
  }

  // Returns how each rank ended. Ranks that hang are killed, so their result is SIGKILL.
  std::vector<int> statuses() { return statuses(0, pids_.size()); }
  // The same for the ranks from `first` to below `end`.
  std::vector<int> statuses(size_t first, size_t end) {
    std::vector<int> result;
    const auto deadline = Deadline::after(Milliseconds(60'000));
    for (size_t i = first; i < end; ++i) {
      pollfd entry{descriptors_[i], POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(deadline.left().count())) <= 0) {
        ADD_FAILURE() << "rank " << i << " hangs";
        kill(static_cast<int>(i));
      }
      int status = 0;
      ::waitpid(pids_[i], &status, 0);
      result.push_back(status);
    }
    return result;
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<int> descriptors_;
};

}  // namespace troika::train
