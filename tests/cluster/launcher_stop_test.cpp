// However a launch ends, no process is left, and the report says who failed first.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/syscall.h>

#include <cerrno>

#include "tests/cluster/launch_process.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/launch/guardian.h"
#include "troika/cluster/launch/launch_report.h"
#include "troika/cluster/ranks/exit_status.h"
#include "troika/cluster/ranks/failure.h"
#include "troika/cluster/ranks/output.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {
namespace {

using testing::HasSubstr;

// Waits until a process ends. A zombie that waits for another parent counts as ended.
bool ends(pid_t pid) {
  const net::Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return errno == ESRCH;
  return net::wait_for(process.get(), POLLIN, Deadline::after(kPatience));
}

// Returns the process ids that scripts wrote into files of this folder, one id per file.
std::vector<pid_t> pids_in(const std::filesystem::path& folder) {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto pid = parse_int(trim(read_file(entry.path())));
    if (pid) pids.push_back(static_cast<pid_t>(*pid));
  }
  return pids;
}

// Each rank writes down its own process id, that of a background child, and that of an orphan in a
// session of its own. Then it runs for ever.
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
    EXPECT_TRUE(ends(pid)) << "process " << pid << " is still there";
  }
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
    ASSERT_TRUE(comes_into(pids.path(), [&] { return whole_family(pids.path(), 2); }));
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
  ASSERT_TRUE(comes_into(pids.path(), [&] { return whole_family(pids.path(), 1); }));
  const auto all = pids_in(pids.path());
  launch.signal(SIGINT);
  ASSERT_TRUE(comes_into(pids.path(), [&] { return std::filesystem::exists(pids / "asked.tmp"); }));
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  expect_gone(all);
}

TEST(Guardian, KeepsNothingOpenThatEndsWithTheLauncher) {
  net::Pipe pipe = net::make_pipe();
  const Guardian guardian(1);
  pipe.write.reset();
  EXPECT_TRUE(net::wait_for(pipe.read.get(), POLLIN, Deadline::after(kPatience)));
}

TEST(Launcher, SigkillOfTheLauncherLeavesNoProcess) {
  TemporaryFolder pids;
  Launch launch(shell(family(pids.path()), 2));
  ASSERT_TRUE(comes_into(pids.path(), [&] { return whole_family(pids.path(), 2); }));
  std::vector<pid_t> all;
  for (const pid_t pid : pids_in(pids.path())) {
    // The guardian does not see processes that have left their process group.
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
  ASSERT_TRUE(comes_into(work.path(), [&] {
    return std::filesystem::exists(ready + "0") && std::filesystem::exists(ready + "1");
  }));
  launch.signal(SIGUSR1);
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.log(0) + launch.log(1), "saved\nsaved\n");
}

TEST(Launcher, RanksThatSavedOnRequestHaveNotFailed) {
  TemporaryFolder work;
  auto options =
      shell("cd " + work.path().string() +
                "; if [ $RANK = 0 ]; then trap 'exit 5' USR1; else "
                "trap 'n=$((n + 1)); touch got$n; if [ $n = 4 ]; then exit 5; fi' USR1; fi; n=0; "
                "echo $$ > tmp$RANK; mv tmp$RANK pid$RANK; while :; do sleep 0.01; done",
            2);
  options.grace_time = Milliseconds(0);
  Launch launch(options);
  const auto there = [&](const std::string& name) {
    return comes_into(work.path(), [&] { return std::filesystem::exists(work / name); });
  };
  ASSERT_TRUE(there("pid0") && there("pid1"));
  const auto rank0 = static_cast<pid_t>(parse_int(trim(read_file(work / "pid0"))).value());
  launch.signal(SIGUSR1);
  ASSERT_TRUE(there("got1") && ends(rank0));
  // By the third of these signals, the launcher has reacted to the end of rank 0.
  for (const char* next : {"got2", "got3", "got4"}) {
    launch.signal(SIGUSR1);
    ASSERT_TRUE(there(next));
  }
  EXPECT_EQ(launch.wait(), 5);
  EXPECT_EQ(launch.err(), "");
}

TEST(Launcher, StoppedRanksHaveTheTimeTheyAreGivenToSave) {
  TemporaryFolder work;
  auto options = shell("cd " + work.path().string() +
                           "; trap 'echo saving; touch asked$RANK' TERM; touch ready$RANK; "
                           "until [ -e end ]; do sleep 0.01; done; exit 6",
                       2);
  options.shutdown_timeout = Milliseconds(100'000);
  Launch launch(options);
  ASSERT_TRUE(comes_into(work.path(), [&] {
    return std::filesystem::exists(work / "ready0") && std::filesystem::exists(work / "ready1");
  }));
  launch.signal(SIGTERM);
  ASSERT_TRUE(comes_into(work.path(), [&] {
    return std::filesystem::exists(work / "asked0") && std::filesystem::exists(work / "asked1");
  }));
  write_file_atomically(work / "end", "");
  EXPECT_EQ(launch.wait(), 6);
  // Besides the shell's message about its sleep.
  EXPECT_THAT(launch.log(0), HasSubstr("saving\n"));
  EXPECT_THAT(launch.log(1), HasSubstr("saving\n"));
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

TEST(LaunchReport, RanksThatBlameAPeerCountLast) {
  std::vector<RankEnd> ends(3);
  for (int rank = 0; rank < 3; ++rank) {
    ends[rank].rank = rank;
    ends[rank].status.code = rank == 2 ? 1 : 3;
    ends[rank].ended_ns = 10 + rank;
  }
  EXPECT_EQ(first_failure(ends), &ends[2]);
  ends[2].status.code = 0;
  EXPECT_EQ(first_failure(ends), &ends[0]) << "the culprit may be on another machine";
}

TEST(LaunchReport, OnlyRanksThatAllSavedGiveTheirCode) {
  std::vector<RankEnd> ends(2);
  EXPECT_EQ(saved_code(ends), std::nullopt);
  ends[1].status.code = 6;
  EXPECT_EQ(saved_code(ends), 6);
  ends[0].status.code = 5;
  EXPECT_EQ(saved_code(ends), 5);
  EXPECT_EQ(first_failure(ends), nullptr);
  ends[0].status.code = 3;
  EXPECT_EQ(saved_code(ends), std::nullopt);
  EXPECT_EQ(first_failure(ends), &ends[0]);
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
