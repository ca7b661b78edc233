// `troika launch --nnodes MIN:MAX` around training: machines are lost and join, and the run ends
// with the weights of one undisturbed process, because every sample of an epoch was used once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/cli/saved_weights.h"
#include "tests/cluster/launch_process.h"
#include "tests/support/subprocess.h"
#include "troika/cluster/discovery/port.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing_support::run_program;

constexpr Milliseconds kLong{60'000};

// Trains 64-bit weights in folder $1 with the options $OPTIONS until it is stopped; once $1/finish
// is there, 11 steps more than the checkpoint it resumes from. With $2 to that many steps.
constexpr const char* kRank = R"(
cd $1; steps=${2:-1000000000}; last=runs/run/checkpoints/last
if [ -e finish ]; then at=$(readlink $last); at=${at##*=}; steps=$((${at%-v*} + 11)); fi
exec $PROGRAM train --trainer.max_steps=$steps --trainer.max_epochs=1000000 \
  --checkpoint.every_n_train_steps=5 --checkpoint.every_n_epochs=0 --optim.schedule=constant \
  --model.name=mlp --model.hidden_width=8 --model.dropout=0 --data.train_samples=90 \
  --data.validation_samples=12 --data.global_batch_size=12 --data.augment=true \
  --trainer.precision=64-true --trainer.enable_progress_bar=false --optim.name=adamw $OPTIONS
)";

class ElasticTraining : public testing::Test {
 protected:
  ElasticTraining() {
    std::filesystem::create_directories(checkpoints());
    ::setenv("PROGRAM", TROIKA_PROGRAM, /*overwrite=*/1);
    ::setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
    ::setenv("OPTIONS", "", /*overwrite=*/1);
  }

  std::filesystem::path checkpoints() const { return folder_ / "runs/run/checkpoints"; }
  int64_t step() const { return saved_step(checkpoints()); }
  bool trains_beyond(int64_t least) const { return saves_beyond(checkpoints(), least, kLong); }

  cluster::LaunchOptions options() const {
    auto result = cluster::shell(kRank);
    result.command.insert(result.command.end(), {"rank", folder_.path().string()});
    result.num_nodes = 3;
    result.shutdown_timeout = kLong;
    result.elastic = {.min_nodes = 1,
                      .endpoint = fmt::format("127.0.0.1:{}", port_),
                      .id = "",
                      .last_call_timeout = Milliseconds(0),
                      .join_timeout = kLong};
    return result;
  }

  const TemporaryFolder folder_;
  const int port_ = cluster::free_port();
};

TEST_F(ElasticTraining, EndsAsOneProcessThatNothingHappenedTo) {
  using cluster::Launch;
  Launch host(options());
  ASSERT_TRUE(trains_beyond(0)) << host.err();
  Launch second(options());
  Launch third(options());
  const auto all_three = [&] { return third.err().find("of 3, ranks") != std::string::npos; };
  for (int64_t at = step(); !all_three(); at = step())
    ASSERT_TRUE(trains_beyond(at)) << third.err();
  ASSERT_TRUE(trains_beyond(step() + 7)) << third.err();
  third.signal(SIGKILL);
  EXPECT_EQ(third.wait(), 137);
  // At most one that the three were writing, and two of the others.
  ASSERT_TRUE(trains_beyond(step() + 14)) << host.err();
  write_file_atomically(folder_ / "finish", "");
  Launch fourth(options());
  EXPECT_EQ(fourth.wait(), 0) << fourth.err() << fourth.log(2);
  EXPECT_EQ(host.wait(), 0) << host.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(host.err(), HasSubstr("was lost"));
  EXPECT_THAT(host.log(0), HasSubstr("resumes from"));
  EXPECT_THAT(fourth.err(), HasSubstr("of 3, ranks 2-2 of 3\n"));

  const TemporaryFolder alone;
  write_file_atomically(alone / "rank", kRank);
  const auto whole =
      run_program(fmt::format("PROGRAM={} sh {} {} {}", TROIKA_PROGRAM, (alone / "rank").string(),
                              alone.path().string(), step()));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_same_weights(checkpoints() / "last.safetensors",
                      alone / "runs/run/checkpoints/last.safetensors");
}

// The stages step at different times. They drain before the ranks of two machines replace those of
// one, as a run of one machine does that stops and goes on at the same step.
TEST_F(ElasticTraining, StagesWithoutFlushesDrainBeforeTheWorldChanges) {
  const std::string pipeline = "--trainer.strategy=pipedream --mesh.pipeline=2";
  ::setenv("OPTIONS", pipeline.c_str(), /*overwrite=*/1);
  auto of_machine = options();
  of_machine.num_nodes = of_machine.processes = 2;
  cluster::Launch host(of_machine);
  ASSERT_TRUE(trains_beyond(5)) << host.err() << host.log(0);
  write_file_atomically(folder_ / "finish", "");
  cluster::Launch second(of_machine);
  EXPECT_EQ(second.wait(), 0) << second.err() << second.log(2);
  EXPECT_EQ(host.wait(), 0) << host.err() << host.log(0);
  EXPECT_THAT(second.err(), HasSubstr("ranks 2-3 of 4\n"));

  const TemporaryFolder alone;
  write_file_atomically(alone / "rank", kRank);
  for (const int64_t steps : {step() - 11, step()}) {
    ::setenv("OPTIONS", (pipeline + " --trainer.ckpt_path=last").c_str(), /*overwrite=*/1);
    const auto part =
        run_program(fmt::format("PROGRAM={0} {0} launch -n 2 sh {1} {2} {3}", TROIKA_PROGRAM,
                                (alone / "rank").string(), alone.path().string(), steps));
    ASSERT_EQ(part.exit_code, 0) << part.err;
  }
  // A checkpoint has the stages in different files.
  const auto exported = [](const TemporaryFolder& folder) {
    const auto file = folder / "whole.safetensors";
    const auto outcome =
        run_program(fmt::format("{} export {} {}", TROIKA_PROGRAM,
                                (folder / "runs/run/checkpoints/last").string(), file.string()));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return file;
  };
  expect_same_weights(exported(folder_), exported(alone));
}

TEST_F(ElasticTraining, RefusesABatchThatDependsOnTheNumberOfMachines) {
  const std::pair<std::string, std::string> rows[] = {
      {"--data.batch_size=4",
       "data.batch_size = 4 on each of a changing number of ranks, expected "
       "data.global_batch_size, a multiple of 12 "},
      {"--data.global_batch_size=16",
       "data.global_batch_size = 16, which does not divide among the replicas on 3 machines, "
       "expected data.global_batch_size, a multiple of 12 "},
      // Each machine holds one replica of the model.
      {"--trainer.strategy=1f1b --mesh.pipeline=2 --data.global_batch_size=8",
       "data.global_batch_size = 8, which does not divide among the replicas on 3 machines, "
       "expected data.global_batch_size, a multiple of 6 "},
  };
  for (const auto& [option, words] : rows) {
    const auto outcome = run_program(
        fmt::format("cd {}; exec {} launch -n 2 --nnodes 1:3 --rdzv-endpoint 127.0.0.1:{} "
                    "--rdzv-last-call-timeout 0 {} train {}",
                    folder_.path().string(), TROIKA_PROGRAM, port_, TROIKA_PROGRAM, option));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("[train] the global batch must stay the same when machines "
                                       "come and go; got " +
                                       words + "(--nnodes 1:3 with 2 ranks each)"));
  }
}

}  // namespace
}  // namespace troika
