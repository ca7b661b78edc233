// Where pipelines without flushes drain: validations, checkpoints, stops, and changes of the world.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/train/asynchronous_runs.h"

namespace troika::train {
namespace {

class AsynchronousDrains : public AsynchronousRuns {};

// Validations, and checkpoints three steps after they are asked for.
TEST_F(AsynchronousDrains, DrainsWhereAllStagesMustBeAtOneStep) {
  auto options = asynchronous("pipedream");
  options.trainer.val_check_interval = "4";
  auto course = fit(options, 4, "mlp");
  expect_equal(course.state, oracle(options, 4, "mlp", {4, 4, 3, 4, 4, 3}));
  EXPECT_EQ(
      std::ranges::count_if(course.rows,
                            [](const auto& row) { return row.second.contains("validation/loss"); }),
      6);
  options = asynchronous("pipedream");
  options.checkpoint.every_n_train_steps = 6;
  expect_equal(fit(options, 4, "mlp").state, oracle(options, 4, "mlp", {9, 2, 4, 6, 1}));
}

// Stopped between two drains that an uninterrupted run does not have.
TEST_F(AsynchronousDrains, GoesOnFromADrainedCheckpoint) {
  for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
    SCOPED_TRACE(strategy);
    auto options = asynchronous(strategy);
    options.run.folder = (folder_ / strategy).string();
    options.trainer.max_steps = 5;
    fit(options, 2, "mlp");
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    const auto resumed = fit(options, 2, "mlp");
    const int m = strategy == "pipedream" ? 1 : 2;
    expect_equal(resumed.state,
                 oracle(options, 2, "mlp", {5 * m, kMicroBatches - 5 * m, kMicroBatches}));
  }
}

// Checkpoints have no versions, so every strategy resumes from them.
TEST_F(AsynchronousDrains, OtherStrategiesGoOn) {
  auto options = asynchronous("pipedream");
  options.run.folder = (folder_ / "changes").string();
  options.trainer.max_epochs = 1;
  options.trainer.gradient_clip_algorithm = "value";
  fit(options, 4, "mlp");
  options.trainer.max_epochs = 2;
  options.trainer.ckpt_path = "last";
  options.trainer.strategy = "ddp";
  options.pipeline = {};
  const auto course = fit(options, 1, "mlp");
  EXPECT_EQ(course.summary.steps, 2 * kMicroBatches);
}

TEST_F(AsynchronousDrains, DrainsBeforeItStops) {
  auto options = asynchronous("pipedream");
  const auto course = fit(options, 4, "mlp", [](Trainer& trainer, Task&) {
    trainer.add(std::make_shared<AsksToStop>(/*after=*/3));
  });
  EXPECT_EQ(course.summary.steps, 6);
  expect_equal(course.state, oracle(options, 4, "mlp", {6}));
}

// As an elastic launch changes the world: the ranks stop after a drain, and others go on.
TEST_F(AsynchronousDrains, GoesOnInAWorldOfAnotherSize) {
  for (const std::string strategy : {"pipedream", "pipedream_2bw"}) {
    SCOPED_TRACE(strategy);
    auto options = asynchronous(strategy, 2);
    options.mesh.pipeline = 2;
    options.run.folder = (folder_ / strategy).string();
    options.trainer.max_epochs = 3;
    options.trainer.ckpt_path = "last";
    fit(options, 2, "mlp",
        [](Trainer& trainer, Task&) { trainer.add(std::make_shared<AsksToStop>(/*after=*/2)); });
    fit(options, 4, "mlp",
        [](Trainer& trainer, Task&) { trainer.add(std::make_shared<AsksToStop>(/*after=*/8)); });
    const auto course = fit(options, 2, "mlp");
    EXPECT_EQ(course.summary.steps, 18);
    const auto expected = oracle(options, 2, "mlp", {6, 5, 6, 5, 11});
    expect_near(course.state, expected);
  }
}

}  // namespace
}  // namespace troika::train
