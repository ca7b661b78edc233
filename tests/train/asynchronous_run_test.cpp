#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/errors.h"
#include "tests/train/asynchronous_runs.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

class AsynchronousRun : public AsynchronousRuns {};

TEST_F(AsynchronousRun, TrainsAsDelayedStepsOfOneProcess) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", strategy, ranks));
      const auto options = asynchronous(strategy);
      const auto course = fit(options, ranks, "mlp");
      const int m = strategy == "pipedream" ? 1 : ranks;
      EXPECT_EQ(course.summary.steps, 2 * ((kMicroBatches + m - 1) / m));
      EXPECT_EQ(course.summary.samples, 2 * kMicroBatches * 4);
      expect_equal(course.state, oracle(options, ranks, "mlp", epochs(2)));
    }
  }
}

// The last step of an epoch has one micro-batch, and the first stage two replicas.
TEST_F(AsynchronousRun, StagesShareMicroBatchesInTurns) {
  for (const bool steps_by_replicas : {false, true}) {
    SCOPED_TRACE(steps_by_replicas);
    auto options = asynchronous("pipedream");
    options.mesh.axes = "pipeline=2 data=2-1";
    options.pipeline.steps_by_replicas = steps_by_replicas;
    options.data.global_batch_size = 4;
    const auto course = fit(options, 3, "mlp");
    EXPECT_EQ(course.summary.steps, 2 * ((kMicroBatches + 1) / 2));
    EXPECT_EQ(course.summary.samples, 2 * kMicroBatches * 4);
    const auto expected = oracle(options, 3, "mlp", epochs(2));
    expect_near(course.state, expected);
    EXPECT_EQ(std::ranges::count_if(
                  course.rows, [](const auto& row) { return row.second.contains("train/loss"); }),
              course.summary.steps);
  }
}

TEST_F(AsynchronousRun, SynchronizesVerticallyAndAccumulates) {
  auto options = asynchronous("pipedream", 3);
  options.pipeline.vertical_sync = true;
  expect_equal(fit(options, 4, "mlp").state, oracle(options, 4, "mlp", epochs(2)));
}

TEST_F(AsynchronousRun, OneRankIsDdp) {
  auto options = asynchronous("pipedream");
  auto alone = options_;
  for (auto* one : {&options, &alone}) one->trainer.gradient_clip_algorithm = "norm";
  options.trainer.gradient_clip_algorithm = "stage_norm";
  expect_equal(fit(options, 1, "mlp").state, fit(alone, 1, "mlp").state);
}

TEST_F(AsynchronousRun, FlushesAs1f1b) {
  auto options = pipelined("pipedream_flush", 4), same = pipelined("1f1b", 4);
  expect_equal(fit(options, 2, "mlp").state, fit(same, 2, "mlp").state);
}

// Each rank logs its losses at its own step.
TEST_F(AsynchronousRun, LogsTheLossOfEveryStep) {
  const auto course = fit(asynchronous("pipedream"), 4, "mlp");
  int steps = 0;
  for (const auto& [step, row] : course.rows) steps += row.contains("train/loss");
  EXPECT_EQ(steps, 2 * kMicroBatches);
}

TEST_F(AsynchronousRun, RefusesWhatNeedsAllGradientsAtOnce) {
  const auto refused = [&](TrainOptions options, int ranks, const std::string& model,
                           const std::string& what) {
    options.run.folder = (folder_ / fmt::format("refused-{}", ++runs_)).string();
    comm::local::run(ranks, [&](const comm::Group& world) {
      Task task(make_sized_model(model));
      const SizedSamples samples(sizes_of(model));
      std::string error;
      try {
        Trainer(options, world).fit(task, samples, samples);
      } catch (const Error& problem) {
        error = problem.what();
      }
      EXPECT_THAT(error, HasSubstr(what));
    });
  };
  auto options = asynchronous("pipedream");
  options.trainer.gradient_clip_algorithm = "norm";
  refused(options, 2, "mlp",
          "an option that a pipeline without flushes does not support; got "
          "trainer.gradient_clip_algorithm norm with schedule pipedream, expected value, or "
          "stage_norm: the norm of each stage");
  options = asynchronous("pipedream_2bw", 1);
  refused(options, 2, "mlp",
          "schedule.name pipedream-2bw; got schedule.micro_batches 1, expected at least 2, those "
          "in flight");
  options = asynchronous("pipedream");
  options.zero.stage = 1;
  refused(options, 2, "mlp", "schedule.name pipedream; got exchange.method zero");
  options = asynchronous("pipedream");
  refused(options, 2, "gpt", "a pipeline without flushes shares a parameter between ranks");
  options = asynchronous("1f1b", 4);
  options.pipeline.vertical_sync = true;
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.vertical_sync");
  options.pipeline.vertical_sync = false;
  options.pipeline.stash_weights = false;
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.stash_weights");
  options.pipeline.stash_weights = true;
  options.pipeline.in_flight = 2;
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.in_flight");
  options.pipeline.in_flight = 1;
  options.pipeline.warm_up = "noam";
  refused(options, 2, "mlp", "strategy 1f1b does not take pipeline.warm_up");
  options = asynchronous("pipedream");
  options.pipeline.stash_weights = false;
  options.trainer.precision = "bf16-mixed";
  refused(options, 2, "mlp",
          "got trainer.precision bf16-mixed with schedule pipedream-unstashed, expected 32, or "
          "pipeline.stash_weights");
  options.trainer.precision = "64";
  options.trainer.recompute = "full";
  refused(options, 2, "mlp",
          "schedule.name pipedream-unstashed; got memory.recompute full, expected none, or a "
          "schedule that stashes weights");
}

// A recomputed forward pass uses the weights of the first one, also with older versions.
TEST_F(AsynchronousRun, RecomputesWithTheWeightsOfTheForwardPass) {
  for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
    SCOPED_TRACE(strategy);
    auto options = asynchronous(strategy);
    options.trainer.recompute = "full";
    expect_equal(fit(options, 3, "mlp").state, oracle(options, 3, "mlp", epochs(2)));
  }
}

TEST(AsynchronousPlan, FollowsTheOptions) {
  TrainOptions options;
  const auto plan = [&](const std::string& strategy) {
    options.trainer.strategy = strategy;
    return resolve_plan(options, layout::Cluster::uniform(1, 4));
  };
  EXPECT_EQ(plan("pipedream").weights(), StageWeights::stashed);
  EXPECT_EQ(plan("pipedream").micro_batches, 1);
  EXPECT_EQ(plan("pipedream_2bw").weights(), StageWeights::double_buffered);
  EXPECT_EQ(plan("pipedream_2bw").micro_batches, 4);
  EXPECT_EQ(plan("pipedream_flush").weights(), StageWeights::synchronous);
  EXPECT_EQ(plan("pipedream_flush").schedule, "1f1b");
  EXPECT_EQ(plan("pipedream_flush").micro_batches, 8);
  options.pipeline.in_flight = 2;
  EXPECT_EQ(plan("pipedream").without_flushes.in_flight, 2);
  options.pipeline.warm_up = "noam";
  EXPECT_EQ(plan("pipedream").asynchronous().warm_up_by, layout::WarmUp::noam);
  EXPECT_EQ(plan("pipedream_2bw").micro_batches, 8);
  options.pipeline.stash_weights = false;
  EXPECT_EQ(plan("pipedream").weights(), StageWeights::unstashed);
  options.pipeline = {};
  options.pipeline.in_flight = 2;
  options.pipeline.vertical_sync = true;
  EXPECT_EQ(plan("pipedream").weights(), StageWeights::vertical_sync);
  EXPECT_EQ(layout::Plan::parse(plan("pipedream").text(), "text"), plan("pipedream"));
}

}  // namespace
}  // namespace troika::train
