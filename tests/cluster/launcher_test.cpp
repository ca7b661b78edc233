#include "troika/cluster/launch/launcher.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <thread>

#include "tests/cluster/launch_process.h"
#include "tests/support/errors.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/port.h"

namespace troika::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
      "$TROIKA_FLIGHT_RECORD tty=$TROIKA_TTY; cat",
      2);
  options.num_nodes = 3;
  options.node_rank = 1;
  options.master_address = "node0";
  ::unsetenv("OMP_NUM_THREADS");
  ::unsetenv("TROIKA_FLIGHT_RECORD");
  Launch launch(options);
  EXPECT_EQ(launch.wait(), 0);
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);
  for (const int local : {0, 1}) {
    const int rank = 2 + local;
    EXPECT_EQ(launch.log(rank), fmt::format("{} 6 {} 2 1 3 node0 29400 {} troika-node0-29400 "
                                            "{}/rank-{}.error.json {}/flight-record tty=\n",
                                            rank, local, threads, launch.logs().string(), rank,
                                            launch.logs().string()));
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
  EXPECT_THAT(launch.log(1),
              AllOf(HasSubstr("100%\n"), HasSubstr("no newline\n"), HasSubstr("e2\n")));
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

TEST(Launcher, AMessageThatIsShownIsNotRepeated) {
  const auto failing = [](int rank) {
    return shell(fmt::format("[ $RANK = {} ] || exec sleep 1000; printf %s '{{\"message\": \"the "
                             "cause\", \"time_ns\": 1000}}' > $TROIKA_ERROR_FILE; "
                             "echo 'error: the cause' >&2; exit 1",
                             rank),
                 4);
  };
  Launch first(failing(0));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_THAT(first.err(), testing::StartsWith("error: the cause\n"
                                               "[cluster] rank 0 failed first: exit code 1\n"
                                               "  message: above\n"));
  Launch last(failing(3));
  EXPECT_EQ(last.wait(), 1);
  EXPECT_THAT(last.err(), testing::StartsWith("[cluster] rank 3 failed first: exit code 1\n"
                                              "  message: the cause\n"));
}

TEST(Launcher, NamesTheSignalThatKilledARank) {
  Launch launch(shell("[ $RANK = 1 ] && echo unrelated >&2 && kill -KILL $$; exec sleep 1000", 2));
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_EQ(
      launch.err(),
      "[cluster] rank 1 failed first: killed by SIGKILL (137)\n"
      "  message: none: a process that is killed cannot say why; the kernel does it when memory "
      "runs out (dmesg, or memory.events of the cgroup)\n"
      "  log:     " +
          launch.log_path(1) + "\n  rank 0:  stopped by the launcher\n");
}

TEST(Launcher, ReportedFailureCountsBeforeTheOnesItCaused) {
  // Rank 0 ends first, but blames a peer. Rank 1 ends before rank 2, but rank 2's note is older.
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

// The other ranks blame it when it has ended.
TEST(Launcher, NamesARankThatEndedWithoutFailingBeforeTheOthers) {
  for (const int early : {0, 2, 4}) {
    SCOPED_TRACE(early);
    const auto script = fmt::format(
        "pid=$(dirname $TROIKA_ERROR_FILE)/pid; "
        "if [ $RANK = {} ]; then echo $$ > $pid.new; mv $pid.new $pid; exit 0; fi; "
        "until [ -e $pid ]; do :; done; stat=/proc/$(cat $pid)/stat; "
        "until read -r _ _ state _ < $stat && [ $state = Z ]; do :; done; "
        "echo rank {} is gone >&2; exit 3",
        early, early);
    Launch launch(shell(script, 5));
    EXPECT_EQ(launch.wait(), 3);
    EXPECT_THAT(launch.err(),
                HasSubstr(fmt::format("[cluster] rank {} ended with exit code 0 before it had left "
                                      "the run; others failed because of it\n  message: rank ",
                                      early)));
    EXPECT_THAT(launch.err(), HasSubstr(fmt::format(" says: rank {} is gone\n", early)));
    EXPECT_THAT(launch.err(), HasSubstr("exit code 3 (reports the failure of another rank)"));
    EXPECT_THAT(launch.err(), testing::Not(HasSubstr("failed first")));
  }
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

TEST(Launcher, FlightRecordsOfASuccessStay) {
  const TemporaryFolder temporary;
  Launch launch(shell("mkdir $TROIKA_FLIGHT_RECORD; echo record > $TROIKA_FLIGHT_RECORD/rank0"),
                [&](LaunchOptions& own) {
                  own.log_dir.clear();
                  ::unsetenv("TROIKA_FLIGHT_RECORD");
                  ::setenv("TMPDIR", temporary.path().c_str(), 1);
                });
  EXPECT_EQ(launch.wait(), 0);
  int records = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(temporary.path())) {
    if (entry.path().filename() == "rank0") records += read_file(entry.path()) == "record\n";
  }
  EXPECT_EQ(records, 1);
}

TEST(Launcher, LogsAreNotWrittenThroughPlantedLinks) {
  const TemporaryFolder logs, home;
  std::filesystem::permissions(logs.path(), std::filesystem::perms::all);
  write_file_atomically(home / "victim", "precious");
  std::filesystem::create_symlink(home / "victim", logs / "rank-0.log");
  auto options = shell("echo x");
  options.log_dir = logs.path();
  const auto ended = run(options);
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err, HasSubstr("rank-0.log where other users can write; got a symbolic link"));
  EXPECT_EQ(read_file(home / "victim"), "precious");
}

TEST(Launcher, RefusesOneOfSeveralLaunchersThatSrunStarted) {
  ::setenv("SLURM_STEP_ID", "0", 1);
  ::setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  EXPECT_ERROR(
      launch(shell("true")), ErrorKind::usage,
      "[cluster] number of nodes; got 1 with SLURM_STEP_NUM_TASKS=4, expected one launcher "
      "on each node (srun --nodes=N --ntasks-per-node=1 troika launch --nnodes N "
      "--node-rank $SLURM_NODEID, or do without troika launch: srun can start the ranks)");
  auto options = shell("true");
  options.num_nodes = 4;
  options.master_address = "node0";
  EXPECT_EQ(run(options).code, 0);
  ::unsetenv("SLURM_STEP_ID");
  ::unsetenv("SLURM_STEP_NUM_TASKS");
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
      {bad([](auto& o) { o.max_restarts = -1; }),
       "number of restarts; got -1, expected an integer >= 0"},
      {bad([](auto& o) {
         o.max_restarts = 1;
         o.num_nodes = 2;
         o.master_address = "node0";
       }),
       "restarts; got 1 with 2 nodes, expected one node (use --rdzv-endpoint, with which launches "
       "of several nodes restart together)"},
      {bad([](auto& o) {
         o.num_nodes = 2;
         o.elastic = ElasticOptions{.endpoint = "here", .id = ""};
         o.master_address = "node0";
       }),
       "node rank and master address; got values for an elastic run, expected none "
       "(--rdzv-endpoint numbers the launches, and its host has rank 0)"},
      {bad([](auto& o) {
         o.elastic = ElasticOptions{.min_nodes = 2, .endpoint = "here", .id = ""};
       }),
       "number of nodes; got 2:1, expected MIN:MAX with 1 <= MIN <= MAX"},
      {bad([](auto& o) { o.elastic = ElasticOptions{.endpoint = ":1", .id = ""}; }),
       "rendezvous endpoint; got \":1\", expected HOST or HOST:PORT with a port from 1 to 65535 "
       "(an IPv6 address is written in brackets)"},
      {bad([](auto& o) { o.command.clear(); }),
       "program to launch; got none, expected a program and its arguments"},
  };
  for (const auto& [options, message] : table) {
    EXPECT_ERROR(launch(options), ErrorKind::usage, "[cluster] " + message);
  }
}

}  // namespace
}  // namespace troika::cluster
