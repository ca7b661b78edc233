#include "troika/cluster/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <thread>

#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/failure.h"
#include "troika/cluster/launch_report.h"
#include "troika/cluster/output.h"
#include "troika/cluster/port.h"
#include "troika/cluster/process.h"

namespace troika::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

LaunchOptions shell(const std::string& script, int processes = 1) {
  LaunchOptions options;
  options.processes = processes;
  options.settle_time = Milliseconds(200);
  options.shutdown_timeout = Milliseconds(1000);
  options.command = {"/bin/sh", "-c", script};
  return options;
}

// A launch in a process of its own, its outputs in files.
class Launch {
 public:
  explicit Launch(LaunchOptions options) : out_(folder_ / "out"), err_(folder_ / "err") {
    if (options.log_dir.empty()) options.log_dir = logs();
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (const auto& [path, fd] : {std::pair(out_, 1), std::pair(err_, 2)}) {
      ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644), fd);
    }
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
  // The exit code, as a shell shows it; ctest's own limit ends a hang.
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

// Runs to the end; for launches that need no watching.
struct Ended {
  int code;
  std::string out, err;
};
Ended run(const LaunchOptions& options) {
  Launch launch(options);
  const int code = launch.wait();
  return {code, launch.out(), launch.err()};
}

// Polls for what another process is about to do; there is nothing to wait on there.
template <typename Condition>
bool soon(const Condition& condition) {
  const auto deadline = Deadline::after(Milliseconds(8000));
  while (!condition()) {
    if (deadline.passed()) return false;
    ::usleep(2000);
  }
  return true;
}

bool alive(pid_t pid) {
  if (::kill(pid, 0) != 0) return false;
  // A zombie waits for a parent that is not ours; it no longer runs.
  std::error_code ignored;
  const auto stat = std::filesystem::path("/proc") / std::to_string(pid) / "stat";
  if (!std::filesystem::exists(stat, ignored)) return false;
  try {
    const std::string text = read_file(stat);
    return text.substr(text.rfind(')') + 2, 1) != "Z";
  } catch (const Error&) {
    return false;
  }
}

// Process ids that scripts wrote, one each, into files of this folder.
std::vector<pid_t> pids_in(const std::filesystem::path& folder) {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto pid = parse_int(trim(read_file(entry.path())));
    if (pid) pids.push_back(static_cast<pid_t>(*pid));
  }
  return pids;
}

// Each rank notes itself and a background child, which a second one has orphaned into a session of
// its own, and then goes on for ever.
std::string family(const std::filesystem::path& folder, const std::string& before = "") {
  const std::string at = folder.string() + "/$RANK";
  return before + "sleep 1000 & echo $! > " + at + "-child.tmp; mv " + at + "-child.tmp " + at +
         "-child; (setsid sh -c 'echo $$ > " + at + "-stray.tmp; mv " + at + "-stray.tmp " + at +
         "-stray; exec sleep 1000' &) ; echo $$ > " + at + "-self.tmp; mv " + at + "-self.tmp " +
         at + "-self; while :; do sleep 1000 & wait; done";
}

bool whole_family(const std::filesystem::path& folder, size_t ranks) {
  size_t whole = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    whole += entry.path().extension() != ".tmp";
  }
  return whole == 3 * ranks;
}

void expect_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    EXPECT_TRUE(soon([&] { return !alive(pid); })) << "process " << pid << " is still there";
  }
}

TEST(Launcher, SucceedsWhenAllDo) {
  const auto ended = run(shell("echo out $RANK; echo err $RANK >&2", 3));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "out 0\n");
  EXPECT_EQ(ended.err, "err 0\n");
}

TEST(Launcher, GivesEveryRankItsPlace) {
  auto options = shell(
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
      "$MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS $TORCHELASTIC_RUN_ID $TROIKA_ERROR_FILE "
      "tty=$TROIKA_TTY; cat",
      2);
  options.num_nodes = 3;
  options.node_rank = 1;
  options.master_address = "node0";
  ::unsetenv("OMP_NUM_THREADS");
  Launch launch(options);
  EXPECT_EQ(launch.wait(), 0);
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);
  for (const int local : {0, 1}) {
    const int rank = 2 + local;
    EXPECT_EQ(launch.log(rank), fmt::format("{} 6 {} 2 1 3 node0 29400 {} troika-node0-29400 "
                                            "{}/rank-{}.error.json tty=\n",
                                            rank, local, threads, launch.logs().string(), rank));
  }
  EXPECT_EQ(launch.out(), launch.log(2));
}

TEST(Launcher, ChoosesAFreePortAndKeepsWhatIsSet) {
  ::setenv("OMP_NUM_THREADS", "7", 1);
  ::setenv("TORCHELASTIC_RUN_ID", "mine", 1);
  const auto ended =
      run(shell("echo $MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS "
                "$TORCHELASTIC_RUN_ID"));
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::unsetenv("TORCHELASTIC_RUN_ID");
  const auto words = split(trim(ended.out), ' ');
  ASSERT_EQ(words.size(), 4);
  EXPECT_EQ(words[0], "127.0.0.1");
  const auto [low, high] = ephemeral_range();
  const int64_t port = parse_int(words[1]).value_or(0);
  EXPECT_TRUE(port >= 10000 && (port < low || port > high)) << port;
  EXPECT_EQ(words[2], "7");
  EXPECT_EQ(words[3], "mine");
}

TEST(Launcher, WhatItSetsIsWhatDiscoverReads) {
  auto options = shell("env", 4);
  Launch launch(options);
  EXPECT_EQ(launch.wait(), 0);
  std::map<std::string, std::string> variables;
  for (const auto& line : split(launch.log(3), '\n')) {
    const size_t equals = std::min(line.find('='), line.size());
    variables[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
  }
  const auto found = discover([&](const std::string& name) -> std::optional<std::string> {
    const auto entry = variables.find(name);
    return entry == variables.end() ? std::nullopt : std::optional(entry->second);
  });
  EXPECT_EQ(describe(found),
            "rank 3 of 4 (local 3 of 4 on node 0 of 1), found by torchrun variables");
}

TEST(Launcher, PassesRankZeroOnByteForByte) {
  const std::string script =
      "printf 'a\\0b\\377\\r50%%\\r100%%\\nno newline'; printf 'e1\\re2' >&2";
  Launch launch(shell(script, 2));
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), std::string("a\0b\xff\r50%\r100%\nno newline", 24));
  EXPECT_EQ(launch.err(), "e1\re2");
  EXPECT_THAT(launch.log(1), AllOf(HasSubstr("100%\nno newline\n"), HasSubstr("e2\n")));
  EXPECT_EQ(launch.log(1).find('\r'), std::string::npos);
}

TEST(Launcher, ForwardsMoreThanAnyBufferHolds) {
  const auto ended = run(shell("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out.size(), 3'000'000);
  EXPECT_EQ(ended.err.size(), 3'000'000);
}

TEST(Launcher, TeeShowsTheOthersByLine) {
  auto options = shell("[ $RANK = 0 ] || { printf 'x\\ry\\n'; printf 'oops\\nlast' >&2; }", 2);
  options.tee = true;
  const auto ended = run(options);
  EXPECT_EQ(ended.out, "[rank 1] y\n");
  EXPECT_EQ(ended.err, "[rank 1] oops\n[rank 1] last\n");
}

TEST(Launcher, NamesTheFirstFailureAndStopsTheOthers) {
  Launch launch(
      shell("if [ $RANK = 1 ]; then echo no luck >&2; echo >&2; exit 7; fi; "
            "[ $RANK = 2 ] && exit 0; exec sleep 1000",
            3));
  EXPECT_EQ(launch.wait(), 7);
  EXPECT_EQ(launch.err(),
            "[cluster] rank 1 failed first: exit code 7\n"
            "  message: no luck\n"
            "  log:     " +
                launch.log_path(1) +
                "\n"
                "  rank 0:  stopped by the launcher\n"
                "  rank 2:  exit code 0\n");
}

TEST(Launcher, NamesTheSignalThatKilledARank) {
  Launch launch(shell("[ $RANK = 1 ] && kill -KILL $$; exec sleep 1000", 2));
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_EQ(launch.err(),
            "[cluster] rank 1 failed first: killed by SIGKILL (137)\n"
            "  message: none, neither reported nor on its standard error\n"
            "  log:     " +
                launch.log_path(1) + "\n  rank 0:  stopped by the launcher\n");
}

TEST(Launcher, ReportedFailureCountsBeforeTheOnesItCaused) {
  // Rank 0 ends first, but blames a peer; rank 1 before rank 2, but rank 2's note is older.
  const std::string script =
      "case $RANK in 0) exit 3;; 1) exit 1;; 2) "
      "printf %s '{\"message\": \"the cause\\nin two lines\", \"time_ns\": 1000, \"exit_code\": "
      "2}' "
      "> $TROIKA_ERROR_FILE; exit 2;; esac";
  Launch launch(shell(script, 3));
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_EQ(launch.err(),
            "[cluster] rank 2 failed first: exit code 2\n"
            "  message: the cause\n           in two lines\n"
            "  log:     " +
                launch.log_path(2) +
                "\n"
                "  rank 0:  exit code 3 (reports the failure of another rank)\n"
                "  rank 1:  exit code 1\n");
}

TEST(Launcher, OldErrorFilesDoNotSpeakForThisLaunch) {
  TemporaryFolder logs;
  write_file_atomically(logs / "rank-0.error.json", R"({"message": "stale", "time_ns": 1})");
  auto options = shell("exit 5");
  options.log_dir = logs.path();
  const auto ended = run(options);
  EXPECT_EQ(ended.code, 5);
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("stale")));
}

TEST(Launcher, RankThatIgnoresSigtermIsKilled) {
  auto options = shell(
      "if [ $RANK = 1 ]; then while [ ! -e ready ]; do :; done; exit 4; fi; "
      "trap '' TERM; touch ready; while :; do sleep 1000; done",
      2);
  TemporaryFolder work;
  options.command[2] = "cd " + work.path().string() + "; " + options.command[2];
  options.shutdown_timeout = Milliseconds(100);
  const auto ended = run(options);
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.err, HasSubstr("rank 0:  stopped by the launcher, had to be killed\n"));
}

TEST(Launcher, InterruptsLeaveNoProcess) {
  for (const int signal : {SIGINT, SIGTERM}) {
    TemporaryFolder pids;
    Launch launch(shell(family(pids.path()), 2));
    ASSERT_TRUE(soon([&] { return whole_family(pids.path(), 2); }));
    const auto all = pids_in(pids.path());
    ASSERT_EQ(all.size(), 6);
    launch.signal(signal);
    EXPECT_EQ(launch.wait(), 128 + signal);
    expect_gone(all);
    EXPECT_EQ(launch.err(), "[cluster] stopped by " + signal_name(signal) + ", logs are in " +
                                launch.logs().string() + "\n");
  }
}

TEST(Launcher, SecondInterruptDoesNotWait) {
  TemporaryFolder pids;
  auto options =
      shell(family(pids.path(), "trap 'touch " + (pids / "asked.tmp").string() + "' INT; "));
  options.shutdown_timeout = Milliseconds(100'000);
  Launch launch(options);
  ASSERT_TRUE(soon([&] { return whole_family(pids.path(), 1); }));
  const auto all = pids_in(pids.path());
  launch.signal(SIGINT);
  ASSERT_TRUE(soon([&] { return std::filesystem::exists(pids / "asked.tmp"); }));
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  expect_gone(all);
}

TEST(Launcher, SigkillOfTheLauncherLeavesNoProcess) {
  TemporaryFolder pids;
  Launch launch(shell(family(pids.path()), 2));
  ASSERT_TRUE(soon([&] { return whole_family(pids.path(), 2); }));
  std::vector<pid_t> all;
  for (const pid_t pid : pids_in(pids.path())) {
    // What left its process group is out of the guardian's sight.
    if (::getpgid(pid) == ::getsid(pid)) {
      ::kill(pid, SIGKILL);
    } else {
      all.push_back(pid);
    }
  }
  EXPECT_EQ(all.size(), 4);
  launch.signal(SIGKILL);
  EXPECT_EQ(launch.wait(), 137);
  expect_gone(all);
}

TEST(Launcher, FailureAndSuccessSweepUpWhatRanksLeftRunning) {
  for (const int code : {0, 6}) {
    TemporaryFolder pids;
    std::string script = family(pids.path());
    script.resize(script.find("while :"));
    const std::string files = "[ $(ls " + pids.path().string() + " | grep -vc tmp) = 3 ]";
    Launch launch(shell(script + "until " + files + "; do :; done; exit " + std::to_string(code)));
    EXPECT_EQ(launch.wait(), code);
    const auto all = pids_in(pids.path());
    EXPECT_EQ(all.size(), 3);
    expect_gone(all);
  }
}

TEST(Launcher, PassesUserSignalsOn) {
  TemporaryFolder work;
  const std::string ready = (work / "ready").string();
  Launch launch(shell(
      "trap 'echo saved; exit 0' USR1; touch " + ready + "$RANK; while :; do sleep 0.01; done", 2));
  ASSERT_TRUE(soon([&] {
    return std::filesystem::exists(ready + "0") && std::filesystem::exists(ready + "1");
  }));
  launch.signal(SIGUSR1);
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.log(0) + launch.log(1), "saved\nsaved\n");
}

TEST(Launcher, ProgramThatCannotBeExecuted) {
  auto options = shell("");
  options.processes = 2;
  options.command = {"/no/such/program"};
  auto ended = run(options);
  EXPECT_EQ(ended.code, 127);
  EXPECT_EQ(ended.err,
            "[cluster] cannot execute \"/no/such/program\"; got no such file or directory, "
            "expected a program in PATH or the path of one\n");
  options.command = {"/etc"};
  ended = run(options);
  EXPECT_EQ(ended.code, 127);
  EXPECT_THAT(ended.err, HasSubstr("cannot execute \"/etc\"; got permission denied"));
}

TEST(Launcher, FreshLogFolderGoesWithSuccessAndStaysWithFailure) {
  TemporaryFolder temporary;
  for (const std::string code : {"0", "9"}) {
    ::setenv("TMPDIR", temporary.path().c_str(), 1);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(::open("/dev/null", O_WRONLY), 2);
      ::_exit(launch(shell("exit " + code)));
    }
    ::unsetenv("TMPDIR");
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(std::to_string(WEXITSTATUS(status)), code);
    EXPECT_EQ(std::filesystem::is_empty(temporary.path()), code == "0");
  }
}

TEST(Launcher, RefusesBadOptions) {
  const auto bad = [](const auto& change) {
    auto options = shell("true");
    change(options);
    return options;
  };
  const std::vector<std::pair<LaunchOptions, std::string>> table{
      {bad([](auto& o) { o.processes = 0; }),
       "number of processes; got 0, expected an integer >= 1"},
      {bad([](auto& o) { o.processes = 1'000'000; }),
       "number of processes; got 1000000, expected at most 4096 on one machine"},
      {bad([](auto& o) { o.num_nodes = 0; }), "number of nodes; got 0, expected an integer >= 1"},
      {bad([](auto& o) {
         o.num_nodes = 2;
         o.node_rank = 2;
       }),
       "node rank; got 2, expected an integer from 0 to 1 (the number of nodes is 2)"},
      {bad([](auto& o) { o.num_nodes = 2; }),
       "master address; got none, expected the host name or address of node 0 (needed with more "
       "than one node)"},
      {bad([](auto& o) { o.master_port = 65536; }),
       "master port; got 65536, expected an integer from 1 to 65535"},
      {bad([](auto& o) { o.shutdown_timeout = Milliseconds(-1); }),
       "shutdown timeout; got -1 ms, expected a time >= 0"},
      {bad([](auto& o) { o.command.clear(); }),
       "program to launch; got none, expected a program and its arguments"},
  };
  for (const auto& [options, message] : table) {
    EXPECT_ERROR(launch(options), ErrorKind::usage, "[cluster] " + message);
  }
}

std::vector<std::string> cut(const std::vector<std::string>& chunks) {
  std::vector<std::string> lines;
  LineCutter cutter;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (const auto& chunk : chunks) cutter.feed(chunk, take);
  cutter.finish(take);
  return lines;
}

TEST(LineCutter, KeepsTheLastStateOfALine) {
  using testing::ElementsAre;
  EXPECT_THAT(cut({"a\nb\n"}), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(cut({"10%\r20%", "\r30%\n"}), ElementsAre("30%\n"));
  EXPECT_THAT(cut({"10%\r", "\n"}), ElementsAre("10%\n"));
  EXPECT_THAT(cut({"dos\r\n\r\nend\r"}), ElementsAre("dos\n", "\n", "end\n"));
  EXPECT_THAT(cut({"\r10%\r20%"}), ElementsAre("20%\n"));
  EXPECT_THAT(cut({std::string(1 << 16, 'x'), "y\n"}),
              ElementsAre(std::string(1 << 16, 'x'), "y\n"));
}

TEST(Failure, ReportIsReadBack) {
  TemporaryFolder folder;
  const auto file = folder / "error.json";
  report_failure(std::runtime_error("unheard"));
  ::setenv("TROIKA_ERROR_FILE", file.c_str(), 1);
  const int64_t before = realtime_ns();
  report_failure(Error("data", ErrorKind::usage, {.what = "bad \"file\"\xff"}));
  ::unsetenv("TROIKA_ERROR_FILE");
  const auto note = read_failure(file);
  ASSERT_TRUE(note);
  EXPECT_EQ(note->message, "[data] bad \"file\"\xef\xbf\xbd");
  EXPECT_EQ(note->exit_code, 2);
  EXPECT_TRUE(note->time_ns >= before && note->time_ns <= realtime_ns());
  EXPECT_FALSE(read_failure(folder / "none"));
  write_file_atomically(folder / "broken", "{\"message\": ");
  EXPECT_FALSE(read_failure(folder / "broken"));
}

TEST(LaunchReport, StoppedRanksCountOnlyWithANoteFromBefore) {
  std::vector<RankEnd> ends(2);
  ends[0].rank = 0;
  ends[1].rank = 1;
  for (auto& end : ends) {
    end.status = {0, SIGTERM};
    end.ended_ns = 100;
    end.stopped_ns = 50;
  }
  EXPECT_EQ(first_failure(ends), nullptr);
  ends[1].note = FailureNote{"late", 60, 1};
  EXPECT_EQ(first_failure(ends), nullptr);
  ends[1].note->time_ns = 40;
  EXPECT_EQ(first_failure(ends), &ends[1]);
  EXPECT_THAT(report(ends, ends[1], "node7"),
              HasSubstr("rank 1 on node7 failed first: killed by SIGTERM (143)\n"));
}

}  // namespace
}  // namespace troika::cluster
