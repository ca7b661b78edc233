// Launches that agree on rounds. Each "machine" is a separate launch on this machine.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "tests/cluster/launch_process.h"
#include "troika/base/error.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/rendezvous.h"
#include "troika/net/socket.h"

namespace troika::cluster {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kManyRounds = 20;

// For the scripts of ranks. `note` makes the file ROUND-RANK-of-WORLD_SIZE.
const std::string kRunForEver = "note; while :; do sleep 1000 & wait; done";
const std::string kUntilAllowed = "[ -e finish ] && note && exit 0; " + kRunForEver;
const std::string kSaves = "trap 'exit 6' TERM; " + kUntilAllowed;

class Elastic : public testing::Test {
 protected:
  LaunchOptions options(const std::string& script, int min_nodes, int max_nodes,
                        int max_restarts = 0) {
    auto result =
        shell(fmt::format("cd {}; at=$TROIKA_ROUND-$RANK-of-$WORLD_SIZE; "
                          "note() {{ : > $at.tmp; mv $at.tmp $at; }}; {}",
                          folder_.path().string(), script));
    result.grace_time = Milliseconds(0);
    result.num_nodes = max_nodes;
    result.max_restarts = max_restarts;
    result.elastic = {.min_nodes = min_nodes,
                      .endpoint = fmt::format("127.0.0.1:{}", port_),
                      .id = "",
                      .last_call_timeout = Milliseconds(0),
                      .join_timeout = Milliseconds(20'000)};
    return result;
  }

  using Prepare = std::function<void(LaunchOptions&)>;
  Launch& add(const LaunchOptions& options, const Prepare& prepare = {}) {
    return *launches_.emplace_back(std::make_unique<Launch>(options, prepare));
  }
  // Adds machines that all wait for each other.
  void add(const LaunchOptions& options, int count) {
    for (int i = 0; i < count; ++i) add(options);
  }

  // Waits for a round of `world_size` ranks, and returns its number, which depends on which
  // launches come first.
  int begins(int world_size) {
    int round = 0;
    const bool has_begun = comes_into(folder_.path(), [&] {
      // A round that another launch interrupts may have no notes.
      for (round = 0; round < kManyRounds; ++round) {
        int rank = 0;
        while (exists(round, rank, world_size)) ++rank;
        if (rank == world_size) return true;
      }
      return false;
    });
    EXPECT_TRUE(has_begun) << "no round of " << world_size;
    return round;
  }
  bool exists(int round, int rank, int world_size) const {
    return std::filesystem::exists(folder_ / fmt::format("{}-{}-of-{}", round, rank, world_size));
  }

  // Lets the ranks of later rounds end with success at once.
  void let_finish() { write_file_atomically(folder_ / "finish", ""); }

  // Returns the launch that was machine `rank` of the round.
  Launch& machine(int rank, int round) {
    for (const auto& launch : launches_) {
      if (launch->err().find(fmt::format("round {}: machine {} of", round, rank)) !=
          std::string::npos) {
        return *launch;
      }
    }
    ADD_FAILURE() << "no machine " << rank << " in round " << round;
    return *launches_.front();
  }

  const TemporaryFolder folder_;
  const int port_ = free_port();
  std::vector<std::unique_ptr<Launch>> launches_;
};

TEST_F(Elastic, MachinesNumberThemselves) {
  auto two_each = options(
      "echo $RANK $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK of "
      "$GROUP_WORLD_SIZE, $MASTER_ADDR $TROIKA_NNODES",
      2, 3);
  two_each.processes = 2;
  two_each.elastic->last_call_timeout = Milliseconds(20'000);
  add(two_each, 3);
  for (const auto& launch : launches_) EXPECT_EQ(launch->wait(), 0) << launch->err();
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(machine(rank / 2, 0).log(rank),
              fmt::format("{} {} of 2, {} of 3, 127.0.0.1 2:3\n", rank, rank % 2, rank / 2));
  }
}

TEST_F(Elastic, AfterAFailureAllStartAnew) {
  add(options("[ $TROIKA_ROUND = 1 ] && echo $TORCHELASTIC_RESTART_COUNT of "
              "$TORCHELASTIC_MAX_RESTARTS && exit 0; [ $RANK = 2 ] && exit 7; " +
                  kRunForEver,
              3, 3, 2),
      3);
  for (const auto& launch : launches_) {
    EXPECT_EQ(launch->wait(), 0);
    EXPECT_THAT(launch->err(), HasSubstr("of 3, restart 1 of 2\n"));
    EXPECT_EQ(launch->out(), "1 of 2\n");
  }
  EXPECT_THAT(machine(2, 0).err(), HasSubstr("rank 2 on "));
  EXPECT_THAT(machine(0, 0).err(), HasSubstr("ends the round: a rank of process "));
}

TEST_F(Elastic, WhenNoRestartIsLeftTheFailureIsEverybodys) {
  // Rank 0 reports the failure of another rank, perhaps earlier.
  auto failing =
      options("[ $RANK = 0 ] && exit 3; exit $((10 + TORCHELASTIC_RESTART_COUNT))", 2, 2, 1);
  failing.grace_time = kPatience;
  add(failing, 2);
  for (const auto& launch : launches_) EXPECT_EQ(launch->wait(), 11) << launch->err();
}

TEST_F(Elastic, WhatAnotherTryCannotHelpEndsAll) {
  add(options("[ $RANK = 1 ] && exit 2; " + kRunForEver, 2, 2, 3), 2);
  for (const auto& launch : launches_) {
    EXPECT_EQ(launch->wait(), 2);
    EXPECT_THAT(launch->err(), Not(HasSubstr("round 1")));
  }
  launches_.clear();
  auto missing = options("", 2, 2, 3);
  missing.command = {"/no/such/program"};
  add(missing, 2);
  for (const auto& launch : launches_) EXPECT_EQ(launch->wait(), 127) << launch->err();
  launches_.clear();
  add(options(kRunForEver, 2, 2, 3));
  add(missing);
  for (const auto& launch : launches_) EXPECT_EQ(launch->wait(), 127) << launch->err();
}

TEST_F(Elastic, TemporaryLogsStayWithAFailureOnly) {
  const std::pair<std::string, int> rows[] = {
      {"exit 0", 0}, {"exit 6", 6}, {"exit 9", 9}, {"", 127}};
  for (const auto& [script, code] : rows) {
    const TemporaryFolder temporary;
    auto own = options(script, 1, 1);
    if (script.empty()) own.command = {"/no/such/program"};
    auto& launch = add(own, [&](LaunchOptions& options) {
      options.log_dir.clear();
      ::setenv("TMPDIR", temporary.path().c_str(), 1);
    });
    EXPECT_EQ(launch.wait(), code) << launch.err();
    EXPECT_EQ(std::filesystem::is_empty(temporary.path()), code != 9) << code;
  }
}

TEST_F(Elastic, AChildOfBeforeMayEndBeforeTheFirstRound) {
  auto alone = options(kRunForEver, 2, 2);
  alone.elastic->join_timeout = Milliseconds(1000);
  auto& launch = add(alone, [this](LaunchOptions&) {
    if (::fork() != 0) return;
    // Waits until the launch listens.
    const auto deadline = Deadline::after(kPatience);
    while (!deadline.passed() && !net::try_connect("127.0.0.1", port_, deadline).socket) {
    }
    ::_exit(0);
  });
  EXPECT_EQ(launch.wait(), 99);
  EXPECT_THAT(launch.err(), HasSubstr("too few machines within 1 s"));
}

TEST_F(Elastic, TheOthersGoOnWithoutALostMachine) {
  add(options(kUntilAllowed, 1, 3), 3);
  const int round = begins(3);
  auto& lost = machine(1, round);
  let_finish();
  lost.signal(SIGKILL);
  EXPECT_EQ(lost.wait(), 137);
  for (const auto& launch : launches_) {
    if (launch.get() == &lost) continue;
    EXPECT_EQ(launch->wait(), 0) << launch->err();
    EXPECT_THAT(launch->err(), HasSubstr("was lost: "));
    EXPECT_THAT(launch->err(), Not(HasSubstr("restart")));
  }
  EXPECT_TRUE(exists(round + 1, 1, 2));
}

TEST_F(Elastic, AMachineThatComesIsTakenInOnceTheRanksHaveSaved) {
  auto& host = add(options(kSaves, 1, 2));
  ASSERT_EQ(begins(1), 0);
  let_finish();
  auto& second = add(options(kSaves, 1, 2));
  EXPECT_EQ(host.wait(), 0) << host.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_TRUE(exists(1, 1, 2));
  EXPECT_THAT(host.err(), HasSubstr("ends the round: to continue with one more machine (process "));
  EXPECT_THAT(host.err(), Not(HasSubstr("failed")));
}

TEST_F(Elastic, OneTooManyWaitsAndReplacesALostOne) {
  add(options(kUntilAllowed, 2, 2), 2);
  const int round = begins(2);
  auto& spare = add(options(kUntilAllowed, 2, 2));
  auto& lost = machine(1, round);
  let_finish();
  lost.signal(SIGKILL);
  EXPECT_EQ(spare.wait(), 0) << spare.err();
  EXPECT_THAT(spare.err(), HasSubstr("round 1: machine 1 of 2"));
  EXPECT_EQ(machine(0, round).wait(), 0);
}

TEST_F(Elastic, AMachineThatIsToldToEndLeavesTheOthers) {
  add(options(kSaves, 1, 2), 2);
  const int round = begins(2);
  auto& leaves = machine(1, round);
  auto& stays = machine(0, round);
  let_finish();
  leaves.signal(SIGTERM);
  EXPECT_EQ(leaves.wait(), 6) << leaves.err();
  EXPECT_EQ(stays.wait(), 0) << stays.err();
  EXPECT_TRUE(exists(round + 1, 0, 1));
  EXPECT_THAT(stays.err(), HasSubstr("was told to end\n"));
}

TEST_F(Elastic, WhenTheHostIsToldToEndAllSaveAndEnd) {
  add(options(kSaves, 1, 2), 2);
  machine(0, begins(2)).signal(SIGTERM);
  for (const auto& launch : launches_) {
    EXPECT_EQ(launch->wait(), 6);
    EXPECT_THAT(launch->err(), HasSubstr("the launch that hosts it was told to end\n"));
  }
}

TEST_F(Elastic, ARoundThatCrossesTheSignalToTheHostEnds) {
  // Output that does not fit into a pipe: the launch blocks in its report of the first round, and
  // the round ends after that.
  auto failing = options("[ $TROIKA_ROUND = 0 ] || { " + kRunForEver +
                             "; }; printf '{\"message\": \"%0200000d\", \"time_ns\": 1}' 0 > "
                             "$TROIKA_ERROR_FILE; exit 7",
                         1, 1, 1);
  net::Pipe pipe = net::make_pipe();
  auto& host = add(failing, [&](LaunchOptions&) { ::dup2(pipe.write.get(), STDERR_FILENO); });
  pipe.write.reset();
  std::string said;
  const auto read_some = [&] {
    std::array<char, 4096> bytes;
    const ssize_t got = ::read(pipe.read.get(), bytes.data(), bytes.size());
    if (got > 0) said.append(bytes.data(), static_cast<size_t>(got));
    return got > 0;
  };
  while (said.find("failed first") == std::string::npos) ASSERT_TRUE(read_some());
  host.signal(SIGTERM);
  while (read_some()) {
  }
  EXPECT_EQ(host.wait(), 143);
  EXPECT_THAT(said, HasSubstr("the launch that hosts it was told to end\n"));
}

TEST_F(Elastic, WhenTheHostIsLostAllEnd) {
  add(options(kRunForEver, 1, 2, 5), 2);
  const int round = begins(2);
  auto& other = machine(1, round);
  machine(0, round).signal(SIGKILL);
  EXPECT_EQ(other.wait(), 99);  // of Launch, for an Error
  EXPECT_THAT(other.err(), HasSubstr(fmt::format("[cluster] the launch that hosts the run, at "
                                                 "127.0.0.1:{}, was lost; got its connection",
                                                 port_)));
}

TEST_F(Elastic, TooFewMachinesAreAnErrorInTime) {
  auto impatient = options(kRunForEver, 2, 3);
  impatient.elastic->join_timeout = Milliseconds(300);
  auto& launch = add(impatient);
  EXPECT_EQ(launch.wait(), 99);
  EXPECT_THAT(launch.err(), HasSubstr("[cluster] too few machines within 0.3 s; got 1 (process "));
  EXPECT_THAT(launch.err(), HasSubstr("), expected at least 2 (MIN of --nnodes"));
}

TEST_F(Elastic, TooFewAreLeft) {
  auto impatient = options(kRunForEver, 2, 2);
  impatient.elastic->join_timeout = Milliseconds(3000);
  add(impatient, 2);
  const int round = begins(2);
  auto& host = machine(0, round);
  machine(1, round).signal(SIGKILL);
  EXPECT_EQ(host.wait(), 99);
  EXPECT_THAT(host.err(), HasSubstr("too few machines within 3 s; got 1 (process "));
}

TEST_F(Elastic, LaunchesThatDisagreeAreRefusedByTheOption) {
  auto& host = add(options(kRunForEver, 1, 3));
  ASSERT_EQ(begins(1), 0);
  auto processes = options("", 1, 3), nodes = options("", 1, 2), id = options("", 1, 3);
  processes.processes = 2;
  id.elastic->id = "other";
  const std::pair<LaunchOptions, std::string> rows[] = {
      {processes, "--nproc-per-node; got 2 from process "},
      {nodes, "--nnodes; got 1:2 from process "},
      {id, "--rdzv-id; got other from process "}};
  for (const auto& [differs, words] : rows) {
    const auto ended = run(differs);
    EXPECT_EQ(ended.code, 99);
    EXPECT_THAT(ended.err, HasSubstr("[cluster] launches of one run disagree on " + words));
    EXPECT_THAT(ended.err, HasSubstr(", which hosts them"));
  }
  EXPECT_THAT(host.err(), Not(HasSubstr("ends the round")));
}

TEST_F(Elastic, RanksThatMeetThereAreToldThatItIsNoRankZero) {
  add(options(kRunForEver, 1, 3));
  ASSERT_EQ(begins(1), 0);
  Environment rank;
  rank.rank = 1;
  rank.world_size = 2;
  rank.master_port = port_;
  try {
    Rendezvous::join(rank, Deadline::after(kPatience));
    ADD_FAILURE() << "joined";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[cluster] could not authenticate with rank 0 at "));
  }
}

TEST_F(Elastic, AMachineWithAnotherSecretIsToldWhy) {
  auto impatient = options(kRunForEver, 2, 2);
  impatient.elastic->join_timeout = Milliseconds(6000);
  auto& host = add(impatient);
  const std::string other(64, 'e');
  auto& stranger = add(impatient, [&](LaunchOptions&) {
    // The first launch on this machine is the host.
    while (!net::try_connect("127.0.0.1", port_, Deadline::after(kPatience)).socket) {
    }
    ::setenv(kSecretVariable, other.c_str(), 1);
  });
  EXPECT_EQ(stranger.wait(), 99);
  EXPECT_THAT(stranger.err(),
              HasSubstr(fmt::format("[cluster] could not authenticate with the launch at "
                                    "127.0.0.1:{}; got no answer to our proof (its connection "
                                    "closed), expected the same run secret and version of Troika "
                                    "there (ours is from TROIKA_RUN_SECRET; ",
                                    port_)));
  EXPECT_EQ(host.wait(), 99);
  EXPECT_THAT(host.err(), HasSubstr("too few machines within 6 s; got 1 (process "));
  EXPECT_THAT(host.err(), HasSubstr("connections failed authentication there: do all have the "
                                    "same run secret?)"));
  EXPECT_THAT(stranger.err() + host.err(), Not(HasSubstr(other)));
}

TEST_F(Elastic, RanksGetTheSecretOfTheirRoundAndNobodyShowsIt) {
  const std::string shared(64, 'd');
  const auto prepare = [&](LaunchOptions&) { ::setenv(kSecretVariable, shared.c_str(), 1); };
  const auto two = options(
      "echo ${#TROIKA_RUN_SECRET} > secret-$RANK; echo $TROIKA_RUN_SECRET >> "
      "secret-$RANK; [ $TROIKA_ROUND = 0 ] && exit 7; exit 0",
      2, 2, 1);
  add(two, prepare);
  add(two, prepare);
  for (const auto& launch : launches_) {
    EXPECT_EQ(launch->wait(), 0) << launch->err();
    EXPECT_THAT(launch->err() + launch->out(), Not(HasSubstr(shared)));
  }
  const std::string first = read_file(folder_ / "secret-0");
  EXPECT_EQ(first, read_file(folder_ / "secret-1"));
  EXPECT_THAT(first, testing::MatchesRegex("64\n[0-9a-f]*\n"));
  EXPECT_THAT(first, Not(HasSubstr(shared)));
}

}  // namespace
}  // namespace troika::cluster
