// Launches of the processes of a parameter server.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/cluster/launch_process.h"
#include "tests/support/errors.h"
#include "troika/cluster/ranks/roles.h"

namespace troika::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Each process runs the branch of `cases` for its role and number, such as `worker0`.
LaunchOptions roles(const std::string& cases, int servers, int workers) {
  ::setenv(kSecretVariable, std::string(64, 'a').c_str(), 1);
  auto options = shell("case $TROIKA_ROLE$TROIKA_ROLE_INDEX in " + cases + " esac", 1);
  options.roles = {.servers = servers, .workers = workers};
  options.processes = processes_of(*options.roles);
  return options;
}

TEST(LauncherRoles, EveryProcessGetsItsOwn) {
  ::setenv("RANK", "7", 1);
  Launch launch(
      roles("*) echo $TROIKA_ROLE $TROIKA_ROLE_INDEX of $TROIKA_SERVERS $TROIKA_WORKERS "
            "$TROIKA_EMBEDDED ${#TROIKA_RUN_SECRET} rank=$RANK/$WORLD_SIZE $TROIKA_SCHEDULER;;",
            2, 2));
  ::unsetenv("RANK");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  const auto err = launch.err();
  const auto begin = err.find("127.0.0.1:");
  ASSERT_NE(begin, std::string::npos) << err;
  const auto scheduler = err.substr(begin, err.find(';') - begin);
  EXPECT_EQ(err, fmt::format("[cluster] scheduler at {0}; troika server status {0}\n", scheduler));
  for (const auto& [file, role, rank] : {std::tuple("scheduler", "scheduler 0", "/"),
                                         {"server-0", "server 0", "/"},
                                         {"server-1", "server 1", "/"},
                                         {"worker-0", "worker 0", "0/2"},
                                         {"worker-1", "worker 1", "1/2"}}) {
    EXPECT_EQ(read_file(launch.logs() / (std::string(file) + ".log")),
              fmt::format("{} of 2 2 0 64 rank={} {}\n", role, rank, scheduler));
  }
  EXPECT_EQ(launch.out(), read_file(launch.logs() / "worker-0.log"));
}

TEST(LauncherRoles, TheEndOfAServerIsNotTheEndOfTheOthers) {
  const TemporaryFolder folder;
  const auto fifo = (folder / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // Worker 0 reads until the end of server 1.
  const auto ended = run(roles(fmt::format("server1) exec 3>{0}; kill -9 $$;; "
                                           "worker0) cat {0}; echo done;;",
                                           fifo),
                               2, 1));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "done\n");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("[cluster] server 1: killed by SIGKILL"),
                               HasSubstr("; the launch lets the others run; log: "),
                               Not(HasSubstr("failed first"))));
}

TEST(LauncherRoles, AWorkerThatFailedIsAFailureOfTheRun) {
  const auto ended = run(roles("worker1) echo broken >&2; exit 9;;", 0, 2));
  EXPECT_EQ(ended.code, 9);
  EXPECT_THAT(
      ended.err,
      AllOf(HasSubstr("[cluster] worker 1: exit code 9; the launch lets the others run; log: "),
            HasSubstr("[cluster] worker 1 failed first: exit code 9\n"),
            HasSubstr("message: broken"), HasSubstr("scheduler:")));
}

TEST(LauncherRoles, TheSchedulersFailureEndsTheOthers) {
  const auto ended = run(roles("scheduler0) exit 8;; *) exec sleep 100;;", 1, 1));
  EXPECT_EQ(ended.code, 8);
  EXPECT_THAT(ended.err, HasSubstr("[cluster] scheduler failed first: exit code 8\n"));
}

TEST(LauncherRoles, BadOptionsAreRefused) {
  auto options = roles("", 1, 1);
  options.processes = 4;
  EXPECT_ERROR(launch(options), ErrorKind::usage,
               "[cluster] number of processes; got 4, expected 3 (servers and workers say how many "
               "processes there are)");
  options = roles("", 1, 1);
  options.max_restarts = 1;
  EXPECT_THROW(launch(options), Error);
  options = roles("", 1, 1);
  options.interface = "lo";
  EXPECT_ERROR(launch(options), ErrorKind::usage,
               "[cluster] servers and workers; got an interface or a master address, expected "
               "neither (the scheduler listens on 127.0.0.1; --master-port is its port)");
  options = roles("", 1, 0);
  EXPECT_ERROR(launch(options), ErrorKind::usage,
               "[cluster] number of workers; got 0, expected an integer >= 1");
}

}  // namespace
}  // namespace troika::cluster
