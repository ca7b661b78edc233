// Runs with strategy diloco: over a group, and as replicas that are threads of this process, whose
// lighthouse is here, too.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/quorum_course.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

std::shared_ptr<Task> make_plain_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<Task>(nn::from_sequential(net));
}

// Outer steps are after each third step, of two fragments in turns, of which each was sent two
// steps before. An epoch has four steps.
class DiLoCoRun : public QuorumCourse {
 protected:
  DiLoCoRun() : QuorumCourse(make_plain_task) {
    options_.trainer.strategy = "diloco";
    options_.trainer.max_epochs = 3;
    options_.trainer.num_sanity_val_steps = 0;
    options_.optimizer.name = "adamw";
    options_.optimizer.lr = 0.02;
    options_.schedule.name = "constant";
    options_.data.global_batch_size = 6;
    options_.diloco = {.inner_steps = 6, .fragments = 2, .delay = 2, .mixing = 0.5};
  }

  FittedCourse fit_group(const TrainOptions& options, int ranks) {
    return fit_course(options, std::vector<int>(static_cast<size_t>(ranks)), make_plain_task,
                      Waves());
  }
};

TEST_F(DiLoCoRun, OfReplicasIsThatOfAGroup) {
  const auto oracle = fit_group(options_, 2);
  EXPECT_EQ(oracle.summary.steps, 12);
  const auto courses = fit_replicas(with({"run.name=quorum"}), 2);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 12);
    EXPECT_LE(distance(course, oracle), 1e-10);
    EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-10);
    EXPECT_EQ(course.summary.metrics.at("samples_counted"), 3 * 24);
    EXPECT_EQ(course.summary.metrics.at("replicas"), 2);
  }
  EXPECT_EQ(distance(courses[0], courses[1]), 0);
}

// Replicas stop in the middle of rounds and while changes are on their way.
TEST_F(DiLoCoRun, ResumesBitForBit) {
  for (const int ranks : {1, 2}) {
    const auto whole = fit_group(with({"run.name=whole"}), ranks);
    for (const int64_t stop : {1, 2, 3, 4, 7, 11}) {
      SCOPED_TRACE(fmt::format("{} ranks, step {}", ranks, stop));
      const auto name = fmt::format("run.name=stopped-{}-{}", ranks, stop);
      fit_group(with({name, fmt::format("trainer.max_steps={}", stop)}), ranks);
      const auto resumed = fit_group(with({name, "trainer.ckpt_path=last"}), ranks);
      EXPECT_EQ(resumed.summary.steps, 12);
      EXPECT_EQ(distance(resumed, whole), 0);
    }
  }
}

TEST_F(DiLoCoRun, OfAReplicaAloneResumesBitForBit) {
  const auto whole = fit_replicas(with({"run.name=whole"}), 1);
  for (const int64_t stop : {1, 2, 3, 4, 7, 11}) {
    SCOPED_TRACE(stop);
    const auto name = fmt::format("run.name=stopped-{}", stop);
    fit_replicas(with({name, fmt::format("trainer.max_steps={}", stop)}), 1);
    const auto resumed = fit_replicas(with({name, "trainer.ckpt_path=last"}), 1);
    EXPECT_EQ(resumed[0].summary.steps, 12);
    EXPECT_EQ(distance(resumed[0], whole[0]), 0);
  }
}

// All replicas have the outer weights of the checkpoint, and the states of the optimizer of the one
// that wrote it.
TEST_F(DiLoCoRun, ResumesWithAnotherNumberOfReplicas) {
  for (const int64_t stop : {2, 4, 6}) {
    SCOPED_TRACE(stop);
    const auto name = fmt::format("run.name=stopped-{}", stop);
    fit_replicas(with({name, fmt::format("trainer.max_steps={}", stop)}), 2);
    const auto courses = fit_replicas(with({name, "trainer.ckpt_path=last"}), 3);
    EXPECT_EQ(courses[0].summary.steps, 12);
    EXPECT_EQ(distance(courses[0], courses[2]), 0);
  }
}

TEST_F(DiLoCoRun, ValidatesAndSavesTheOuterWeights) {
  const auto options = with({"trainer.max_steps=8", "diloco.delay=0", "trainer.max_epochs=-1"});
  const auto stopped = fit_group(options, 2);
  const auto whole = fit_group(
      with({"trainer.max_steps=6", "diloco.delay=0", "trainer.max_epochs=-1", "run.name=six"}), 2);
  EXPECT_EQ(distance(stopped, whole), 0) << "two inner steps after the last outer step";
  const auto last = checkpoint::linked_checkpoint(
      std::filesystem::path(stopped.summary.run_folder) / "checkpoints", "last");
  const checkpoint::CheckpointReader saved(last, 0);
  EXPECT_TRUE(saved.read("model.0.weight").equal(whole.weights[0]));
}

// Replica 0 is lost while it trains by itself, or while its changes are on their way. Another one
// takes its place. Replicas wait for it before a round, so that it comes before the end.
TEST_F(DiLoCoRun, GoesOnWithoutALostReplicaAndTakesAnother) {
  const auto options =
      with({"trainer.max_epochs=9", "ft_ddp.min_replicas=2", "checkpoint.every_n_train_steps=5"});
  for (const int64_t step : {6, 8}) {
    SCOPED_TRACE(step);
    lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
    FittedCourse other, joiner;
    std::jthread second([&] { other = fit_replica(options, 1, 2); });
    std::jthread first([&] {
      EXPECT_THAT([&] { fit_replica(options, 0, 2, {std::make_shared<Loses>(step)}); },
                  testing::ThrowsMessage<Error>(HasSubstr("lost")));
      joiner = fit_replica(options, 0, 2);
    });
    first.join();
    second.join();
    EXPECT_EQ(other.summary.steps, 36);
    EXPECT_EQ(joiner.summary.steps, 36);
    EXPECT_EQ(distance(other, joiner), 0);
    EXPECT_EQ(other.summary.metrics.at("replicas_lost"), 1);
    EXPECT_EQ(other.summary.metrics.at("samples_begun"), 36 * 6);
    EXPECT_LE(other.summary.metrics.at("samples_counted"), 36 * 6);
    EXPECT_EQ(other.summary.validation_loss, joiner.summary.validation_loss);
  }
}

TEST_F(DiLoCoRun, RefusesWhatItDoesNotSupport) {
  for (const auto& [change, words] : std::vector<std::pair<std::string, std::string>>{
           {"diloco.fragments=4", "fragments of outer steps; got 6 inner steps for 4"},
           {"diloco.delay=3", "the delay of outer steps; got 3 inner steps, expected less than 3"},
           {"diloco.warmup_steps=1",
            "the replicas of strategy diloco may be lost; got "
            "diloco.warmup_steps 1"},
           {"trainer.precision=16-mixed", "trainer.precision 16-mixed"},
           {"trainer.precision=bf16-true", "trainer.precision bf16-true"}}) {
    EXPECT_THAT([&] { QuorumRun(with({change}), {.replicas = 2}); },
                testing::ThrowsMessage<Error>(HasSubstr(words)));
  }
  for (const auto* change : {"diloco.inner_steps=0", "diloco.codec=topk", "diloco.mixing=1.5",
                             "diloco.outer_momentum=1", "diloco.period=3"}) {
    EXPECT_THROW(with({change}), Error) << change;
  }
  EXPECT_THAT([&] { fit_group(with({"diloco.delay=3"}), 1); },
              testing::ThrowsMessage<Error>(HasSubstr("the delay of outer steps")));
}

}  // namespace
}  // namespace troika::train
