// Rounds of a launch with max_restarts.
#include <gmock/gmock.h>

#include "tests/cluster/launch_process.h"

namespace troika::cluster {
namespace {

using testing::HasSubstr;
using testing::Not;

LaunchOptions restarting(const std::string& script, int processes, int max_restarts) {
  auto options = shell(script, processes);
  options.grace_time = Milliseconds(0);
  options.max_restarts = max_restarts;
  return options;
}

TEST(LauncherRestart, AllRanksStartAnewUntilTheySucceed) {
  Launch launch(
      restarting("echo $RANK of $WORLD_SIZE in round $TORCHELASTIC_RESTART_COUNT of "
                 "$TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; "
                 "[ $RANK = 1 ] && exit $((7 + TORCHELASTIC_RESTART_COUNT)); exec sleep 1000",
                 2, 3));
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.log(1),
            "1 of 2 in round 0 of 3\n1 of 2 in round 1 of 3\n1 of 2 in round 2 of 3\n");
  const auto report = [&](const std::string& code, const std::string& restart) {
    return "[cluster] rank 1 failed first: exit code " + code +
           "\n  message: none, neither reported nor on its standard error\n  log:     " +
           launch.log_path(1) + "\n  rank 0:  stopped by the launcher\n[cluster] restart " +
           restart + " of 3\n";
  };
  EXPECT_EQ(launch.err(), report("7", "1") + report("8", "2"));
}

TEST(LauncherRestart, NoProcessOfARoundSeesTheNext) {
  TemporaryFolder work;
  // Rank 0 ignores the signal to stop, and both ranks leave an orphan in a separate session.
  const auto ended =
      run(restarting("cd " + work.path().string() +
                         "; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then for p in $(cat pids*); do "
                         "kill -0 $p && exit 9; done; exit 0; fi; trap '' TERM; "
                         "(setsid sh -c 'echo $$ >> pids'$RANK'; exec sleep 1000' &); "
                         "echo $$ >> pids$RANK; until [ $(cat pids* | wc -w) = 4 ]; do :; done; "
                         "[ $RANK = 1 ] && exit 7; while :; do sleep 1000; done",
                     2, 1));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("rank 0:  stopped by the launcher, had to be killed\n"));
}

TEST(LauncherRestart, WhenNoneIsLeftTheLastFailureCounts) {
  const auto ended =
      run(restarting("echo in round $TORCHELASTIC_RESTART_COUNT >&2; "
                     "exit $((10 + TORCHELASTIC_RESTART_COUNT))",
                     1, 2));
  EXPECT_EQ(ended.code, 12);
  const auto last = ended.err.substr(ended.err.rfind("failed first"));
  EXPECT_THAT(last, HasSubstr("exit code 12\n  message: in round 2\n"));
  EXPECT_THAT(last, Not(HasSubstr("restart")));
}

TEST(LauncherRestart, NotAfterWhatAnotherTryCannotHelp) {
  for (const int code : {2, 5, 6}) {
    const auto ended = run(restarting("echo started; exit " + std::to_string(code), 1, 3));
    EXPECT_EQ(ended.code, code);
    EXPECT_EQ(ended.out, "started\n");
  }
  auto missing = restarting("", 1, 3);
  missing.command = {"/no/such/program"};
  EXPECT_EQ(run(missing).code, 127);
}

TEST(LauncherRestart, NotWhenToldToEnd) {
  const TemporaryFolder work;
  // Rank 0 asks for it when it is stopped because rank 1 failed.
  const auto ended =
      run(restarting("cd " + work.path().string() +
                         "; if [ $RANK = 1 ]; then until [ -e ready ]; do :; done; exit 7; fi; "
                         "echo started; trap 'kill -TERM $PPID; exit 1' TERM; touch ready; "
                         "while :; do sleep 0.01; done",
                     2, 3));
  EXPECT_EQ(ended.code, 143);
  EXPECT_EQ(ended.out, "started\n");
  EXPECT_THAT(ended.err, HasSubstr("rank 1 failed first: exit code 7\n"));
}

TEST(LauncherRestart, LogsOfAFailureStayWhenTheProgramIsGone) {
  const TemporaryFolder temporary, work;
  const auto program = work / "program";
  write_file_atomically(program, "#!/bin/sh\nrm $0; exit 9\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  auto options = restarting("", 1, 1);
  options.command = {program.string()};
  Launch launch(options, [&](LaunchOptions& own) {
    own.log_dir.clear();
    ::setenv("TMPDIR", temporary.path().c_str(), 1);
  });
  EXPECT_EQ(launch.wait(), 127);
  EXPECT_THAT(launch.err(), HasSubstr("rank 0 failed first: exit code 9\n"));
  EXPECT_FALSE(std::filesystem::is_empty(temporary.path()));
}

}  // namespace
}  // namespace troika::cluster
