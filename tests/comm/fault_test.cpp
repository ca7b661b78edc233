// What the other ranks of a job get to know when one misbehaves: processes, on every back end.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/comm/fault_rank.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/port.h"
#include "troika/comm/flight_report.h"

namespace troika::comm {
namespace {

constexpr int kRanks = 3;
constexpr std::chrono::seconds kPatience{60};

struct Told {
  pid_t pid = 0;
  double milliseconds = 0;
  int kind = 0;
  double when = 0;
  std::string what;
};

// A job of ranks of fault_rank, started as its back end wants.
class Job {
 public:
  Job(const std::string& backend, const std::string& fault, const std::string& when, int victim = 1,
      int ranks = kRanks, int nodes = 1) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const char* name : {"news", "permission"}) ::mkfifo((folder_ / name).c_str(), 0600);
    // Open both ways: neither side waits for the other to open.
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
  ~Job() {
    for (const pid_t pid : {victim_}) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    int status = 0;
    while (::waitpid(-1, &status, 0) > 0) {
    }
    ::close(news_);
    ::close(permission_);
  }

  // The last words of the ranks asked for.
  std::map<int, Told> hear(const std::set<int>& ranks) {
    std::map<int, Told> told;
    const auto deadline = Deadline::after(kPatience);
    while (told.size() < ranks.size() && !deadline.passed()) {
      pollfd entry{news_, POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(deadline.left().count())) <= 0) break;
      char bytes[8192];
      text_.append(bytes, static_cast<size_t>(std::max<ssize_t>(0, ::read(news_, bytes, 8192))));
      for (size_t end = 0; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
        std::istringstream line(text_.substr(0, end));
        int rank = 0;
        Told words;
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
  // Until one of the ranks, a fork of this process, has stopped itself.
  static void await_stop() {
    siginfo_t stopped{};
    while (::waitid(P_ALL, 0, &stopped, WSTOPPED | WNOWAIT) < 0 && errno == EINTR) {
    }
  }
  void permit() const { EXPECT_EQ(::write(permission_, "x", 1), 1); }
  std::filesystem::path record() const { return folder_ / "record"; }

 private:
  // A fork of the test, which has no other threads, starts ten times faster than a program.
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
    ::_exit(run_fault_rank(plan));
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

  const TemporaryFolder folder_;
  int news_ = -1;
  int permission_ = -1;
  pid_t victim_ = 0;
  std::string text_;
};

class Faults : public testing::TestWithParam<const char*> {
 protected:
  // What every rank but the victim was told.
  static void expect_survivors(Job& job, int victim, ErrorKind kind, double at_most_ms,
                               const testing::Matcher<std::string>& what) {
    std::set<int> survivors{0, 1, 2};
    survivors.erase(victim);
    const auto told = job.hear(survivors);
    ASSERT_EQ(told.size(), 2U) << "a survivor hangs, or ended without a word";
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(kind)) << words.what;
      EXPECT_THAT(words.what, what) << "on rank " << rank;
      EXPECT_LT(words.milliseconds, at_most_ms) << words.what;
    }
  }
};

// Rows that gloo has, too.
class FaultsEverywhere : public Faults {};

// Rank 0 serves the rendezvous: its end is noticed in another way than that of the others.
struct Case {
  int victim;
  const char* when;
};
constexpr Case kMoments[] = {{1, "before"}, {1, "during"}, {1, "after"}, {0, "during"}};
constexpr Case kBetweenCalls[] = {{1, "before"}, {1, "after"}, {0, "after"}};
// Milliseconds in which a rank is told that would else wait for the time-out of a minute.
constexpr double kAtOnce = 20'000;
// The same where the time-out is 1.5 seconds.
constexpr double kAfterTimeout = 1500 + 5000;

std::string describe(const Case& row) {
  return fmt::format("rank {} {}", row.victim, row.when);
}

TEST_P(FaultsEverywhere, AKilledRankIsNamedAtOnce) {
  for (const auto& row : kMoments) {
    SCOPED_TRACE(describe(row));
    Job job(GetParam(), "kill", row.when, row.victim);
    expect_survivors(job, row.victim, ErrorKind::peer, kAtOnce,
                     testing::HasSubstr(fmt::format("rank {} is gone", row.victim)));
  }
}

// Rank 0, which would pass the news on, is stopped.
TEST(FaultsInSharedMemory, ADeathIsSeenByEveryRankItself) {
  constexpr int kMany = 5;
  Job job("shm", "kill_unserved", "during", 1, kMany);
  Job::await_stop();
  job.permit();
  const auto told = job.hear({2, 3, 4});
  ASSERT_EQ(told.size(), 3U) << "a survivor hangs, or ended without a word";
  for (const auto& [rank, words] : told) {
    EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::peer));
    EXPECT_THAT(words.what, testing::EndsWith("rank 1 is gone: its process has ended")) << rank;
  }
}

TEST_P(Faults, AStoppedRankIsNamedAtTheDeadline) {
  for (const auto& row : kMoments) {
    SCOPED_TRACE(describe(row));
    Job job(GetParam(), "stop", row.when, row.victim);
    expect_survivors(job, row.victim, ErrorKind::timeout, kAfterTimeout,
                     testing::HasSubstr(fmt::format("rank {} does not answer", row.victim)));
    EXPECT_THAT(flight_report(job.record()),
                testing::HasSubstr(fmt::format("rank {}", row.victim)));
  }
}

TEST_P(Faults, ALateRankIsNamedAtTheDeadline) {
  for (const auto& row : kBetweenCalls) {
    SCOPED_TRACE(describe(row));
    Job job(GetParam(), "delay", row.when, row.victim);
    const auto missed = row.when == std::string("before") ? "'step'" : "'next'";
    const auto named = fmt::format("rank {} has not called it", row.victim);
    expect_survivors(job, row.victim, ErrorKind::timeout, kAfterTimeout,
                     testing::AllOf(testing::HasSubstr(named), testing::HasSubstr(missed)));
    // It comes too late, and is told why.
    job.permit();
    const auto told = job.hear({row.victim});
    ASSERT_TRUE(told.contains(row.victim));
    EXPECT_EQ(told.at(row.victim).kind, static_cast<int>(ErrorKind::timeout));
    EXPECT_THAT(told.at(row.victim).what, testing::HasSubstr(named));
  }
}

TEST_P(Faults, ARankThatIsLateWithinTheDeadlineIsNoFault) {
  Job job(GetParam(), "late", "during");
  job.permit();
  const auto told = job.hear({0, 1, 2});
  ASSERT_EQ(told.size(), 3U);
  for (const auto& [rank, words] : told) EXPECT_EQ(words.what, "done") << "rank " << rank;
}

TEST_P(Faults, ARankThatLeavesEarlyIsNamedAtOnce) {
  for (const auto& row : kBetweenCalls) {
    SCOPED_TRACE(describe(row));
    Job job(GetParam(), "leave", row.when, row.victim);
    expect_survivors(job, row.victim, ErrorKind::peer, kAtOnce,
                     testing::HasSubstr(fmt::format(
                         "rank {} has left and takes no part in all_reduce #", row.victim)));
  }
}

// All but the victim wait for a message of it.
TEST_P(FaultsEverywhere, ARankThatSendsNoMessageIsNamed) {
  constexpr int kMany = 5;
  for (const auto& [fault, victim, kind, why] :
       {std::tuple("kill", 0, ErrorKind::peer, "rank 0 is gone"),
        {"kill", 3, ErrorKind::peer, "rank 3 is gone"},
        {"stop", 3, ErrorKind::timeout, "rank 3 does not answer"},
        {"delay", 0, ErrorKind::timeout, "rank 0 has not sent it (last: barrier #0 'start'"}}) {
    SCOPED_TRACE(fmt::format("{} of rank {}", fault, victim));
    std::set<int> survivors{0, 1, 2, 3, 4};
    survivors.erase(victim);
    Job job(GetParam(), fault, "receive", victim, kMany);
    const auto told = job.hear(survivors);
    job.permit();
    ASSERT_EQ(told.size(), survivors.size()) << "a survivor hangs, or ended without a word";
    const auto message = fmt::format("receive #0 from rank {}, tag 5 'step' (fault_rank", victim);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(kind)) << words.what;
      EXPECT_THAT(words.what, testing::AllOf(testing::HasSubstr(why), testing::HasSubstr(message)));
    }
    EXPECT_THAT(flight_report(job.record()), testing::HasSubstr(" waited in " + message));
  }
}

// Shared memory knows it at once; messages of the others may still be on their way.
TEST_P(Faults, AGroupThatTheSenderHasDroppedGivesNoMessage) {
  const bool at_once = GetParam() == std::string("shm");
  Job job(GetParam(), "drop", "before", 0);
  const auto told = job.hear({1, 2});
  ASSERT_EQ(told.size(), 2U) << "a rank ended without a word";
  for (const auto& [rank, words] : told) {
    EXPECT_EQ(words.kind, static_cast<int>(at_once ? ErrorKind::peer : ErrorKind::timeout))
        << words.what;
    EXPECT_THAT(words.what, testing::HasSubstr("rank 0 has left the group"));
  }
}

TEST_P(Faults, MismatchesAreToldToAllRanks) {
  for (const auto& [fault, victim, called] : {std::tuple("operation", 1, "rank 1: broadcast #1"),
                                              {"count", 0, "rank 0: all_reduce #1 'step'"},
                                              {"dtype", 1, "rank 1: all_reduce #1 'step'"}}) {
    SCOPED_TRACE(fault);
    Job job(GetParam(), fault, "before", victim);
    const auto told = job.hear({0, 1, 2});
    ASSERT_EQ(told.size(), 3U);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::usage)) << words.what;
      EXPECT_THAT(words.what, testing::AllOf(testing::HasSubstr("ranks called different"),
                                             testing::HasSubstr(called)))
          << "on rank " << rank;
      EXPECT_LT(words.milliseconds, kAtOnce) << words.what;
    }
  }
}

TEST_P(FaultsEverywhere, AMessageOfAnotherSizeIsToldToAllRanks) {
  for (const auto& [fault, count] : {std::pair("message", 9), {"message_long", 100'000}}) {
    SCOPED_TRACE(fault);
    Job job(GetParam(), fault, "before", 0);
    const auto told = job.hear({0, 1, 2});
    ASSERT_EQ(told.size(), 3U);
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::usage)) << words.what;
      EXPECT_THAT(words.what, testing::HasSubstr(fmt::format(
                                  "a message of another size from rank 0, tag 0; got Float x {}, "
                                  "expected Float x 8",
                                  count)));
    }
  }
}

// Most ranks agree with their neighbours here, and messages go between ranks that do not.
void expect_halves_to_be_told(const std::string& backend, int nodes) {
  struct Row {
    const char* fault;
    int ranks;
    int root;
    const char* low;
    const char* high;
    bool on_mpi = false;  // where each rank loads LibTorch by itself, a few of the rows do
  };
  constexpr Row kRows[] = {
      {"broadcast", 8, 1, "Float x 8 with root 1", "Float x 4096 with root 1", true},
      {"reduce", 8, 0, "Float x 8 sum with root 0", "Float x 4096 sum with root 0"},
      {"gather", 6, 1, "Float x 8 with root 1", "Float x 4096 with root 1", true},
      {"gather_reversed", 8, 1, "Float x 4096 with root 1", "Float x 8 with root 1"},
      {"scatter", 6, 0, "Float x 8 with root 0", "Float x 4096 with root 0", true},
      {"rabenseifner", 8, 0, "Float x 8 sum by rabenseifner", "Float x 4096 sum by rabenseifner",
       true},
      {"root", 6, 0, "Float x 8 with root 0", "Float x 8 with root 5"},
      {"algorithm", 8, 0, "Float x 8 sum by ring", "Float x 8 sum by recursive_doubling"},
      {"empty", 6, 0, "Float x 0 sum", "Float x 8 sum"},
  };
  for (const auto& [fault, ranks, root, low, high, on_mpi] : kRows) {
    if (backend == "mpi" && !on_mpi) continue;
    SCOPED_TRACE(fault);
    Job job(backend, fault, "halves", root, ranks, nodes);
    std::set<int> all;
    for (int r = 0; r < ranks; ++r) all.insert(r);
    const auto told = job.hear(all);
    ASSERT_EQ(told.size(), all.size()) << "a rank hangs, or ended without a word";
    for (const auto& [rank, words] : told) {
      EXPECT_EQ(words.kind, static_cast<int>(ErrorKind::usage)) << words.what;
      EXPECT_THAT(words.what,
                  testing::AllOf(testing::HasSubstr("ranks called different collectives"),
                                 testing::HasSubstr(low), testing::HasSubstr(high)))
          << "on rank " << rank;
      EXPECT_LT(words.milliseconds, kAtOnce) << words.what;
    }
  }
}

TEST_P(Faults, HalvesThatCallDifferentThingsAreToldBothCalls) {
  expect_halves_to_be_told(GetParam(), 1);
}

TEST(FaultsOnNodes, HalvesThatCallDifferentThingsAreToldBothCalls) {
  expect_halves_to_be_told("auto", 2);
}

std::string backend_of(const testing::TestParamInfo<const char*>& row) {
  return row.param;
}
INSTANTIATE_TEST_SUITE_P(On, Faults, testing::Values(TROIKA_FAULT_BACKENDS), backend_of);
INSTANTIATE_TEST_SUITE_P(On, FaultsEverywhere, testing::Values(TROIKA_FAULT_BACKENDS), backend_of);
#ifdef TROIKA_FAULT_GLOO
INSTANTIATE_TEST_SUITE_P(OnGloo, FaultsEverywhere, testing::Values("gloo"), backend_of);
#endif

}  // namespace
}  // namespace troika::comm
