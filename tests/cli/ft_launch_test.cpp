// `troika launch --fault-tolerant` around training: replicas are killed, and started again alone.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/cli/saved_weights.h"
#include "tests/cluster/launch_process.h"
#include "tests/support/subprocess.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::run_program;

constexpr Milliseconds kFtPatience{60'000};

// Trains 64-bit weights in the current folder.
constexpr const char* kFtTraining =
    "train --model.name=mlp --model.hidden_width=8 --model.dropout=0 --data.train_samples=96 "
    "--data.validation_samples=12 --data.global_batch_size=12 --data.augment=true "
    "--trainer.precision=64-true --trainer.enable_progress_bar=false --optim.name=adamw "
    "--optim.schedule=constant --checkpoint.every_n_epochs=0 --checkpoint.every_n_train_steps=5 "
    "--run.name=run";

class FtLaunch : public testing::Test {
 protected:
  FtLaunch() {
    std::filesystem::create_directories(checkpoints());
    ::setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  }
  std::filesystem::path checkpoints() const { return folder_ / "runs/run/checkpoints"; }
  int64_t step() const { return saved_step(checkpoints()); }

  // A launch of training that goes on until it is stopped. Steps have two replicas at least, so
  // that one is left after the end of any.
  cluster::LaunchOptions options(int replicas, int restarts) const {
    auto result = cluster::shell(
        fmt::format("cd {}; echo $$ > rank$RANK; exec {} {} --trainer.max_epochs=1000000 "
                    "--trainer.strategy=ft_ddp --ft_ddp.min_replicas=2",
                    folder_.path().string(), TROIKA_PROGRAM, kFtTraining));
    result.fault_tolerant = true;
    result.processes = replicas;
    result.max_restarts = restarts;
    result.shutdown_timeout = kFtPatience;
    return result;
  }
  void kill(int rank, int signal = SIGKILL) const {
    const auto pid = read_file(folder_ / fmt::format("rank{}", rank));
    ::kill(static_cast<pid_t>(*parse_int(trim(pid))), signal);
  }

  const TemporaryFolder folder_;
};

TEST_F(FtLaunch, StartsLostReplicasAgainAndGoesOnMeanwhile) {
  cluster::Launch launch(options(3, 2));
  ASSERT_TRUE(saves_beyond(checkpoints(), 0, kFtPatience)) << launch.err();
  kill(0);
  ASSERT_TRUE(saves_beyond(checkpoints(), step() + 20, kFtPatience)) << launch.err();
  kill(1);
  ASSERT_TRUE(saves_beyond(checkpoints(), step() + 20, kFtPatience)) << launch.err();
  kill(2);
  ASSERT_TRUE(saves_beyond(checkpoints(), step() + 20, kFtPatience)) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 6) << launch.err();
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr("[cluster] rank 0: killed by SIGKILL (137); restart 1 of 2"),
                    HasSubstr("[cluster] rank 1: killed by SIGKILL (137); restart 2 of 2"),
                    HasSubstr("[cluster] rank 2: killed by SIGKILL (137); the launch "
                              "lets the others run"),
                    HasSubstr("samples counted, "), HasSubstr(" started again")));
}

// A stopped replica is silent; one that has a place no more is ended and started again. On a busy
// machine others may be silent for too long, too, so there are restarts to spare.
TEST_F(FtLaunch, StartsStoppedReplicasAgain) {
  auto stopped = options(3, 5);
  stopped.command.back() += " --ft_ddp.heartbeat_timeout_seconds=3";
  stopped.shutdown_timeout = Milliseconds(5000);
  cluster::Launch launch(stopped);
  ASSERT_TRUE(saves_beyond(checkpoints(), 0, kFtPatience)) << launch.err();
  kill(0, SIGSTOP);
  const std::string again = "[cluster] rank 0: killed by SIGKILL (137); restart ";
  const auto deadline = Deadline::after(kFtPatience);
  while (launch.err().find(again) == std::string::npos && !deadline.passed()) {
    ASSERT_TRUE(saves_beyond(checkpoints(), step(), kFtPatience)) << launch.err();
  }
  EXPECT_THAT(launch.err(), HasSubstr(again));
  ASSERT_TRUE(saves_beyond(checkpoints(), step() + 20, kFtPatience)) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 6) << launch.err();
}

TEST_F(FtLaunch, TrainsLikeOneProcess) {
  const auto together = run_program(
      fmt::format("cd {}; exec {} launch -n 3 --fault-tolerant {} {} --trainer.strategy=ft_ddp "
                  "--trainer.max_steps=9",
                  folder_.path().string(), TROIKA_PROGRAM, TROIKA_PROGRAM, kFtTraining));
  EXPECT_EQ(together.exit_code, 0) << together.err;
  EXPECT_EQ(together.orphans, 0);
  EXPECT_THAT(together.err, HasSubstr("[cluster] 108 of 108 samples counted, 0 replicas lost"));
  const TemporaryFolder alone;
  const auto whole = run_program(fmt::format("cd {}; exec {} {} --trainer.max_steps=9",
                                             alone.path().string(), TROIKA_PROGRAM, kFtTraining));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_same_weights(checkpoints() / "last.safetensors",
                      alone / "runs/run/checkpoints/last.safetensors");
}

// Checkpoints come in the middle of rounds, too.
TEST_F(FtLaunch, StartsLostReplicasOfDiLoCoAgain) {
  auto diloco = options(3, 1);
  diloco.command.back() += " --trainer.strategy=diloco --diloco.inner_steps=4 --diloco.fragments=2";
  cluster::Launch launch(diloco);
  ASSERT_TRUE(saves_beyond(checkpoints(), 0, kFtPatience)) << launch.err();
  kill(0);
  ASSERT_TRUE(saves_beyond(checkpoints(), step() + 20, kFtPatience)) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 6) << launch.err();
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr("[cluster] rank 0: killed by SIGKILL (137); restart 1 of 1"),
                    HasSubstr(" started again")));
}

TEST_F(FtLaunch, CountsTheSamplesOfDiLoCo) {
  const auto outcome = run_program(
      fmt::format("cd {}; exec {} launch -n 3 --fault-tolerant {} {} --trainer.strategy=diloco "
                  "--diloco.inner_steps=3 --trainer.max_steps=9",
                  folder_.path().string(), TROIKA_PROGRAM, TROIKA_PROGRAM, kFtTraining));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[cluster] 108 of 108 samples counted, 0 replicas lost"));
}

TEST_F(FtLaunch, IsForItsStrategyAlone) {
  for (const auto* command : {"train", "validate"}) {
    const auto outcome = run_program(
        fmt::format("cd {}; exec {} launch -n 2 --fault-tolerant {} {} --trainer.strategy=ddp",
                    folder_.path().string(), TROIKA_PROGRAM, TROIKA_PROGRAM, command));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("a fault-tolerant launch of ranks that do not go on"));
  }
}

TEST_F(FtLaunch, NeedsALighthouse) {
  const auto outcome = run_program(
      fmt::format("cd {}; exec {} launch -n 2 {} {} --trainer.strategy=ft_ddp",
                  folder_.path().string(), TROIKA_PROGRAM, TROIKA_PROGRAM, kFtTraining));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("2 replicas without TROIKA_LIGHTHOUSE"));
}

}  // namespace
}  // namespace troika
