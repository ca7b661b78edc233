// A launch in a separate process, which tests can watch.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/launch/launcher.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

inline constexpr Milliseconds kPatience{8000};

// Waits until `condition` holds. Checks it again whenever a file is created in or moved into the
// folder.
template <typename Condition>
bool comes_into(const std::filesystem::path& folder, const Condition& condition,
                Milliseconds patience = kPatience) {
  const net::Descriptor watch(::inotify_init1(IN_CLOEXEC));
  EXPECT_GE(::inotify_add_watch(watch.get(), folder.c_str(), IN_CREATE | IN_MOVED_TO), 0);
  const auto deadline = Deadline::after(patience);
  while (!condition()) {
    if (!net::wait_for(watch.get(), POLLIN, deadline)) return false;
    std::array<char, 4096> events;
    EXPECT_GT(::read(watch.get(), events.data(), events.size()), 0);
  }
  return true;
}

inline LaunchOptions shell(const std::string& script, int processes = 1) {
  LaunchOptions options;
  options.processes = processes;
  options.grace_time = Milliseconds(200);
  options.shutdown_timeout = Milliseconds(1000);
  options.command = {"/bin/sh", "-c", script};
  return options;
}

// A launch whose outputs go to files.
class Launch {
 public:
  // `prepare` is called in the new process before the launch starts there.
  explicit Launch(LaunchOptions options, const std::function<void(LaunchOptions&)>& prepare = {})
      : out_(folder_ / "out"), err_(folder_ / "err") {
    if (options.log_dir.empty()) options.log_dir = logs();
    for (const auto& path : {out_, err_}) write_file_atomically(path, "");
    pid_ = ::fork();
    if (pid_ != 0) return;
    // The launcher's standard input, which the ranks must not read.
    int typed[2];
    if (::pipe(typed) != 0 || ::write(typed[1], "typed\n", 6) != 6) ::_exit(98);
    ::dup2(typed[0], STDIN_FILENO);
    ::close(typed[1]);
    for (const auto& [path, fd] : {std::pair(out_, 1), std::pair(err_, 2)}) {
      ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644), fd);
    }
    if (prepare) prepare(options);
    int code = 99;
    try {
      code = launch(options);
    } catch (const std::exception& error) {
      dprintf(2, "%s\n", error.what());
    }
    ::_exit(code);
  }
  ~Launch() {
    if (!waited_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // Returns the exit code as a shell shows it. If the launch hangs, ctest's time limit ends the
  // test.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }
  std::filesystem::path logs() const { return folder_ / "logs"; }
  std::string log(int rank) const {
    return read_file(logs() / ("rank-" + std::to_string(rank) + ".log"));
  }
  std::string log_path(int rank) const {
    return (logs() / ("rank-" + std::to_string(rank) + ".log")).string();
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path out_, err_;
  pid_t pid_ = 0;
  bool waited_ = false;
};

// The result of a launch that ran to its end, for tests that need not watch it.
struct Ended {
  int code;
  std::string out, err;
};
inline Ended run(const LaunchOptions& options) {
  Launch launch(options);
  const int code = launch.wait();
  return {code, launch.out(), launch.err()};
}

}  // namespace troika::cluster
