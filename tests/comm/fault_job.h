// Runs a job of fault_rank processes, one of which misbehaves, and collects the errors that the
// others get.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/comm/fault_rank.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/port.h"

namespace troika::comm {

// The milliseconds within which a rank must be notified if it would otherwise wait for a timeout of
// a minute.
inline constexpr double kAtOnce = 20'000;
// The same if the timeout is 1.5 seconds.
inline constexpr double kAfterTimeout = 1500 + 5000;

// The report of a rank before it ended.
struct FaultNews {
  pid_t pid = 0;
  double milliseconds = 0;
  int kind = 0;
  double when = 0;
  std::string what;
};

// A job whose ranks call `run`, started as its back end requires. TROIKA_FAULT_RANK is a program
// that does the same.
class FaultJob {
 public:
  FaultJob(const std::string& backend, const std::string& fault, const std::string& when,
           int victim = 1, int ranks = 3, int nodes = 1,
           int (*run)(const FaultPlan& plan) = run_fault_rank)
      : run_(run) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const char* name : {"news", "permission"}) ::mkfifo((folder_ / name).c_str(), 0600);
    // Opened for reading and writing, so that neither side waits for the other to open the pipe.
    news_ = ::open((folder_ / "news").c_str(), O_RDWR);
    permission_ = ::open((folder_ / "permission").c_str(), O_RDWR);
    if (backend == "mpi") {
      spawn_mpirun(fault, when, victim, ranks);
      return;
    }
    const FaultPlan plan{backend, fault, when, folder_.path(), victim};
    const auto port = std::to_string(cluster::free_port());
    for (int r = 0; r < ranks; ++r) {
      const int on_node = ranks / nodes;
      fork_rank(plan,
                {{"RANK", r},
                 {"LOCAL_RANK", r % on_node},
                 {"GROUP_RANK", r / on_node},
                 {"WORLD_SIZE", ranks},
                 {"LOCAL_WORLD_SIZE", on_node}},
                port);
    }
  }
  ~FaultJob() {
    for (const pid_t pid : {victim_}) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    int status = 0;
    while (::waitpid(-1, &status, 0) > 0) {
    }
    ::close(news_);
    ::close(permission_);
  }

  // Waits for the reports of these ranks and returns them.
  std::map<int, FaultNews> hear(const std::set<int>& ranks) {
    std::map<int, FaultNews> told;
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    while (told.size() < ranks.size() && !deadline.passed()) {
      pollfd entry{news_, POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(deadline.left().count())) <= 0) break;
      char bytes[8192];
      text_.append(bytes, static_cast<size_t>(std::max<ssize_t>(0, ::read(news_, bytes, 8192))));
      for (size_t end = 0; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
        std::istringstream line(text_.substr(0, end));
        int rank = 0;
        FaultNews words;
        line >> rank >> words.pid >> words.milliseconds >> words.kind >> words.when >> std::ws;
        std::getline(line, words.what);
        if (words.what == "victim") {
          victim_ = words.pid;
        } else if (ranks.contains(rank)) {
          EXPECT_THAT(words.what, testing::Not(testing::HasSubstr("left behind"))) << rank;
          told[rank] = words;
        }
      }
    }
    return told;
  }
  // Hears all of `ranks` ranks except the victim, and lets them end. Expects that each has an error
  // of this kind in time, whose text fits `words(rank)`.
  void expect_others_told(
      int victim, int ranks, ErrorKind kind,
      const std::function<testing::Matcher<const std::string&>(int rank)>& words) {
    std::set<int> survivors;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != victim) survivors.insert(rank);
    }
    const auto told = hear(survivors);
    permit();
    ASSERT_EQ(told.size(), survivors.size()) << "a survivor hangs, or ended without a word";
    for (const auto& [rank, news] : told) {
      EXPECT_EQ(news.kind, static_cast<int>(kind)) << news.what;
      EXPECT_THAT(news.what, words(rank)) << "on rank " << rank;
      EXPECT_LT(news.milliseconds, kind == ErrorKind::timeout ? kAfterTimeout : kAtOnce);
    }
  }
  // Blocks until one of the ranks, which are forks of this process, has stopped itself.
  static void await_stop() {
    siginfo_t stopped{};
    while (::waitid(P_ALL, 0, &stopped, WSTOPPED | WNOWAIT) < 0 && errno == EINTR) {
    }
  }
  void permit() const { EXPECT_EQ(::write(permission_, "x", 1), 1); }
  std::filesystem::path record() const { return folder_ / "record"; }

 private:
  // Forks the test, which has no other threads. This starts a rank ten times faster than executing
  // a program.
  void fork_rank(const FaultPlan& plan, const std::map<std::string, int>& numbers,
                 const std::string& port) {
    if (::fork() != 0) return;
    const int out = ::open((folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    for (const auto& [name, number] : numbers) {
      ::setenv(name.c_str(), std::to_string(number).c_str(), 1);
    }
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    ::_exit(run_(plan));
  }
  void spawn_mpirun(const std::string& fault, const std::string& when, int victim, int ranks) {
    std::vector<std::string> words{TROIKA_MPIEXEC,
                                   "--allow-run-as-root",
                                   "--oversubscribe",
                                   "--enable-recovery",
                                   "-n",
                                   std::to_string(ranks),
                                   TROIKA_FAULT_RANK,
                                   "mpi",
                                   fault,
                                   when,
                                   folder_.path().string(),
                                   std::to_string(victim)};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, (folder_ / "out").c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = 0;
    EXPECT_EQ(::posix_spawn(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), environ),
              0);
    posix_spawn_file_actions_destroy(&actions);
  }

  int (*const run_)(const FaultPlan& plan);
  const TemporaryFolder folder_;
  int news_ = -1;
  int permission_ = -1;
  pid_t victim_ = 0;
  std::string text_;
};

}  // namespace troika::comm
