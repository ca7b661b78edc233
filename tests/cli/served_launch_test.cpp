// `troika launch --servers S --workers W` around training: scheduler, servers and workers are
// processes of their own, which are killed.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/cli/saved_weights.h"
#include "tests/cluster/launch_process.h"
#include "tests/support/subprocess.h"
#include "troika/cluster/ranks/roles.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::run_program;

constexpr Milliseconds kServedPatience{60'000};

// Trains 64-bit weights in the current folder.
constexpr const char* kServedTraining =
    "train --model.name=mlp --model.hidden_width=8 --model.dropout=0 --data.train_samples=96 "
    "--data.validation_samples=12 --data.global_batch_size=12 --data.augment=true "
    "--trainer.precision=64-true --trainer.enable_progress_bar=false "
    "--optim.schedule=constant --trainer.max_epochs=1000000 --checkpoint.every_n_epochs=0 "
    "--checkpoint.every_n_train_steps=5 --run.name=run";

constexpr const char* kAdamW = " --optim.name=adamw";
constexpr const char* kParameterServer = "--trainer.strategy=parameter_server --optim.name=adamw";
constexpr const char* kBytePs =
    "--trainer.strategy=byteps --optim.name=adamw --byteps.partition_bytes=1024";

class ServedLaunch : public testing::Test {
 protected:
  ServedLaunch() {
    std::filesystem::create_directories(checkpoints());
    ::setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  }

  std::filesystem::path checkpoints() const { return folder_ / "runs/run/checkpoints"; }
  int64_t step() const { return saved_step(checkpoints()); }

  // A launch of training that goes on until it is stopped.
  cluster::LaunchOptions options(int servers, int workers, int replicas = 0,
                                 const std::string& how = kParameterServer) const {
    auto result = cluster::shell(
        fmt::format("cd {}; echo $$ > $TROIKA_ROLE$TROIKA_ROLE_INDEX; exec {} {} {} "
                    "--server.replicas={} --server.limit_seconds=2",
                    folder_.path().string(), TROIKA_PROGRAM, kServedTraining, how, replicas));
    result.roles = {.servers = servers, .workers = workers};
    result.processes = cluster::processes_of(*result.roles);
    result.shutdown_timeout = kServedPatience;
    return result;
  }
  void kill(const std::string& process) const {
    ::kill(static_cast<pid_t>(*parse_int(trim(read_file(folder_ / process)))), SIGKILL);
  }

  // Expects the latest checkpoint to be that of one process that nothing happened to.
  void expect_undisturbed() const {
    const TemporaryFolder alone;
    const auto whole =
        run_program(fmt::format("cd {}; exec {} {}{} --trainer.max_steps={}", alone.path().string(),
                                TROIKA_PROGRAM, kServedTraining, kAdamW, step()));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    expect_same_weights(checkpoints() / "last.safetensors",
                        alone / "runs/run/checkpoints/last.safetensors");
  }

  // Kills a process of a run without copies. Expects that all end with an error that has the words.
  void expect_end(const std::string& victim, const std::string& words,
                  const std::string& how = kParameterServer) const {
    cluster::Launch launch(options(2, 2, 0, how));
    ASSERT_TRUE(saves_beyond(checkpoints(), 0, kServedPatience)) << launch.err();
    kill(victim);
    EXPECT_NE(launch.wait(), 0);
    std::string texts = launch.err();
    for (const char* log : {"worker-0.log", "worker-1.log"}) {
      texts += read_file(launch.logs() / log);
    }
    EXPECT_THAT(texts, HasSubstr(words));
  }

  const TemporaryFolder folder_;
};

// A lost server's parameters are on another one. SIGTERM then lets the workers save, for which they
// need the servers.
TEST_F(ServedLaunch, GoesOnWithoutALostServer) {
  cluster::Launch launch(options(3, 2, 1));
  ASSERT_TRUE(saves_beyond(checkpoints(), 5, kServedPatience)) << launch.err();
  const std::string question = "troika server status ";
  const auto printed = launch.err().substr(launch.err().find(question) + question.size());
  // Not by run_program(), which ends all other processes of this one.
  const auto asked =
      fmt::format("{} server status {} > {}", TROIKA_PROGRAM, printed.substr(0, printed.find('\n')),
                  (folder_ / "status").string());
  EXPECT_EQ(std::system(asked.c_str()), 0);
  EXPECT_THAT(read_file(folder_ / "status"),
              AllOf(HasSubstr("server server-2: heard "), HasSubstr("worker worker-1: heard "),
                    Not(HasSubstr("waits: "))));
  kill("server0");
  ASSERT_TRUE(saves_beyond(checkpoints(), step() + 10, kServedPatience)) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 6) << launch.err();
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[cluster] server 0: killed by SIGKILL"),
                                  HasSubstr("; the launch lets the others run; "),
                                  Not(HasSubstr("failed first"))));
  expect_undisturbed();
}

TEST_F(ServedLaunch, EndsWithALostWorker) {
  expect_end("worker1", "rank 1 is gone");
}

TEST_F(ServedLaunch, EndsWithALostRank0) {
  expect_end("worker0", "worker 0 failed first: killed by SIGKILL (137)");
}

TEST_F(ServedLaunch, EndsWithALostScheduler) {
  expect_end("scheduler0", "[cluster] scheduler failed first: killed by SIGKILL (137)");
}

TEST_F(ServedLaunch, EndsWithTheOnlyCopyOfParameters) {
  expect_end("server1", "was lost with its servers; got 0 copies, expected at least 1");
}

TEST_F(ServedLaunch, EndsWithALostSummationServer) {
  expect_end("server1", "[server] summation servers cannot average gradients; got server-1 is lost",
             kBytePs);
}

TEST_F(ServedLaunch, EndsWithALostWorkerOfSummationServers) {
  expect_end("worker1", "rank 1 is gone", kBytePs);
}

TEST_F(ServedLaunch, EndsWithALostSchedulerOfSummationServers) {
  expect_end("scheduler0", "[cluster] scheduler failed first: killed by SIGKILL (137)", kBytePs);
}

class ServedLaunchByStrategy : public ServedLaunch,
                               public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, ServedLaunchByStrategy, testing::Values(kParameterServer, kBytePs));

TEST_P(ServedLaunchByStrategy, TrainsLikeOneProcess) {
  const auto outcome = run_program(fmt::format(
      "cd {}; exec {} launch --servers 2 --workers 3 {} {} {} --trainer.max_steps=9",
      folder_.path().string(), TROIKA_PROGRAM, TROIKA_PROGRAM, kServedTraining, GetParam()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.orphans, 0);
  EXPECT_THAT(outcome.err, Not(HasSubstr("the launch lets the others run")));
  expect_undisturbed();
}

// Replica 0 is one of those that are lost. The others save what they have when they are asked to.
TEST_F(ServedLaunch, DownpourGoesOnWithoutLostReplicas) {
  const std::string downpour =
      "--trainer.strategy=downpour --optim.name=sgd --optim.momentum=0 --downpour.n_push=2";
  cluster::Launch launch(options(2, 4, 0, downpour));
  ASSERT_TRUE(saves_beyond(checkpoints(), 0, kServedPatience)) << launch.err();
  kill("worker0");
  const auto others = folder_ / "runs/run/replicas/1/checkpoints";
  ASSERT_TRUE(saves_beyond(others, saved_step(others) + 10, kServedPatience)) << launch.err();
  kill("worker3");
  ASSERT_TRUE(saves_beyond(others, saved_step(others) + 10, kServedPatience)) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_NE(launch.wait(), 0) << "two workers were lost";
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[cluster] worker 0: killed by SIGKILL"),
                                  HasSubstr("[cluster] worker 3: killed by SIGKILL"),
                                  HasSubstr("; the launch lets the others run; ")));
  for (const char* log : {"worker-1.log", "worker-2.log"}) {
    EXPECT_THAT(read_file(launch.logs() / log), Not(HasSubstr("error: "))) << log;
  }
  EXPECT_GT(saved_step(folder_ / "runs/run/replicas/2/checkpoints"), saved_step(checkpoints()));
}

// A replica is a pipeline of two ranks. One of them is lost, and the other one ends; the other
// replica goes on.
TEST_F(ServedLaunch, DownpourGoesOnWithoutALostRankOfAReplica) {
  const std::string downpour =
      "--trainer.strategy=downpour --optim.name=sgd --optim.momentum=0 --mesh.pipeline=2 "
      "--pipeline.micro_batches=1";
  cluster::Launch launch(options(2, 4, 0, downpour));
  ASSERT_TRUE(saves_beyond(checkpoints(), 0, kServedPatience)) << launch.err();
  kill("worker0");
  const auto others = folder_ / "runs/run/replicas/1/checkpoints";
  ASSERT_TRUE(saves_beyond(others, saved_step(others) + 10, kServedPatience)) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_NE(launch.wait(), 0) << "a worker was lost";
  EXPECT_THAT(launch.err(), HasSubstr("[cluster] worker 0: killed by SIGKILL"));
  EXPECT_THAT(read_file(launch.logs() / "worker-1.log"), HasSubstr("rank 0"));
  for (const char* log : {"worker-2.log", "worker-3.log"}) {
    EXPECT_THAT(read_file(launch.logs() / log), Not(HasSubstr("error: "))) << log;
  }
}

// The scheduler's process coordinates. Replica 0 is lost; replica 1 has all iterations.
TEST_F(ServedLaunch, SandblasterGoesOnWithoutALostReplica) {
  cluster::Launch launch(options(2, 3, 0, "--trainer.strategy=sandblaster --trainer.max_steps=40"));
  ASSERT_TRUE(saves_beyond(checkpoints(), 0, kServedPatience)) << launch.err();
  kill("worker0");
  EXPECT_NE(launch.wait(), 0) << "a worker was lost";
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[cluster] worker 0: killed by SIGKILL"),
                                  HasSubstr("; the launch lets the others run; ")));
  for (const char* log : {"worker-1.log", "worker-2.log"}) {
    EXPECT_THAT(read_file(launch.logs() / log), Not(HasSubstr("error: "))) << log;
  }
  EXPECT_EQ(saved_step(folder_ / "runs/run/replicas/1/checkpoints"), 40);
}

// The cluster's description has slow links and spare hosts for the launched servers.
TEST_F(ServedLaunch, TrainsByASearchedPlan) {
  std::string cluster = "[links.network]\nbandwidth = 1e6\n";
  for (const char* host : {"a", "b", "c"}) {
    cluster += fmt::format("[[devices]]\nhost = \"{}\"\n", host);
  }
  write_file_atomically(folder_ / "fewer.toml", cluster);
  for (const char* host : {"d", "e"}) {
    cluster += fmt::format("[[devices]]\nhost = \"{}\"\ncount = 0\n", host);
  }
  write_file_atomically(folder_ / "cluster.toml", cluster);
  const auto train = [&](const char* file) {
    return run_program(fmt::format(
        "cd {}; exec {} launch --servers 2 --workers 3 {} {} {} --plan auto --cluster {} "
        "--profile-seconds 0.05 --trainer.max_steps=9",
        folder_.path().string(), TROIKA_PROGRAM, TROIKA_PROGRAM, kServedTraining, kAdamW, file));
  };
  const auto outcome = train("cluster.toml");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out + outcome.err,
              AllOf(HasSubstr("with 2 on spare hosts, which sum gradients"),
                    HasSubstr("micro-batches of "), HasSubstr(", summation servers")));
  expect_undisturbed();
  const auto refused = train("fewer.toml");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("[train] spare hosts of --cluster; got 0, expected 2, the "
                                     "servers that were launched"));
}

// A process that ends before it has connected to the scheduler.
TEST_F(ServedLaunch, ALossBeforeAllHaveJoinedEndsTheRun) {
  const char* const downpour = "--trainer.strategy=downpour --optim.name=sgd --optim.momentum=0";
  for (const auto& [how, victim] : {std::pair(kParameterServer, std::string("server")),
                                    {kBytePs, "worker"},
                                    {downpour, "server"}}) {
    SCOPED_TRACE(fmt::format("{}, {}", how, victim));
    auto killed = options(2, 2, 0, how);
    killed.command.back() =
        fmt::format("if [ $TROIKA_ROLE$TROIKA_ROLE_INDEX = {}1 ]; then kill -9 $$; fi; {}", victim,
                    killed.command.back());
    killed.shutdown_timeout = Milliseconds(2000);
    cluster::Launch launch(killed);
    EXPECT_NE(launch.wait(), 0);
    const auto texts = launch.err() + read_file(launch.logs() / "scheduler.log");
    EXPECT_THAT(texts, AllOf(HasSubstr(victim + "-1 is lost: killed by SIGKILL (137)"),
                             HasSubstr(victim + " 1: killed by SIGKILL")));
  }
}

TEST_F(ServedLaunch, RefusesWhatHasNoUseForServers) {
  const std::tuple<int, std::string, std::string> rows[] = {
      {1, "train --trainer.strategy=ddp",
       "error: [train] servers were launched beside the ranks; got strategy ddp, expected "
       "strategy parameter_server, downpour, sandblaster or byteps\n"},
      {1, "train --trainer.strategy=parameter_server --server.servers=3",
       "error: [train] servers were launched beside the ranks; got server.servers 3, expected the "
       "1 that were launched\n"},
      {0, "train --trainer.strategy=parameter_server",
       "error: [parallel] ranks were launched as workers with servers in their processes; got 0 "
       "servers, expected at least 1 (without a launch of servers, the ranks' processes have "
       "servers: troika launch -n RANKS)\n"},
      {1, "train --trainer.strategy=zero2 --plan auto",
       "error: [train] --plan auto in a launch with servers replaces data parallelism; got "
       "strategy zero2, expected strategy auto, ddp or byteps\n"},
      {1, "validate run.toml",
       "error: [cluster] servers were launched beside the ranks; got troika validate, expected "
       "troika train (troika launch -n starts ranks without servers)\n"},
  };
  write_file_atomically(folder_ / "run.toml", "");
  for (const auto& [servers, arguments, message] : rows) {
    const auto outcome = run_program(
        fmt::format("cd {}; exec {} launch --servers {} --workers 1 {} {}", folder_.path().string(),
                    TROIKA_PROGRAM, servers, TROIKA_PROGRAM, arguments));
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  write_file_atomically(folder_ / "cluster.toml",
                        "[links.network]\nbandwidth = 1e6\n[[devices]]\nhost = \"a\"\n"
                        "[[devices]]\nhost = \"b\"\ncount = 0\n");
  const auto without =
      run_program(fmt::format("cd {}; exec {} train --plan auto --cluster cluster.toml",
                              folder_.path().string(), TROIKA_PROGRAM));
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err,
              HasSubstr("error: [train] spare hosts of --cluster, and no servers were "
                        "launched; got 1, expected 0, or troika launch --servers 1\n"));
}

}  // namespace
}  // namespace troika
