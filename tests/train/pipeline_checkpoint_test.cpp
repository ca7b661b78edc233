// Checkpoints of pipelines: which runs can resume from them, and from which checkpoints pipelines
// can resume.
#include "tests/train/checkpointed_runs.h"
#include "troika/checkpoint/checkpoint.h"

namespace troika::train {
namespace {

class PipelineCheckpoint : public CheckpointedRuns {};

// Stopped in the middle of an epoch, and resumed.
TEST_F(PipelineCheckpoint, GoesOnAsIfItHadNotStopped) {
  for (const int zero : {0, 1, 3}) {
    const std::string schedule = zero == 1 ? "zb-v" : "1f1b";
    auto options = pipelined(schedule, 4);
    options.mesh.pipeline = 2;
    options.zero.stage = zero;
    const auto whole = fit(options, 4, "gpt");
    options.run.folder = (folder_ / fmt::format("cut-{}", zero)).string();
    options.trainer.max_steps = 2;
    fit(options, 4, "gpt");
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    const auto resumed = fit(options, 4, "gpt");
    EXPECT_EQ(resumed.summary.steps, whole.summary.steps);
    for (const auto& [name, tensor] : whole.state) {
      EXPECT_TRUE(resumed.state.at(name).equal(tensor)) << name << ", zero " << zero;
    }
    EXPECT_EQ(resumed.summary.train_loss, whole.summary.train_loss);
    EXPECT_EQ(resumed.summary.validation_loss, whole.summary.validation_loss);
  }
}

// Any layout can resume from the checkpoint of any other.
TEST_F(PipelineCheckpoint, CheckpointsBelongToTheModel) {
  struct Layout {
    std::string strategy;
    int ranks, stages;
    int zero = 0;
    std::string mesh = {};
  };
  auto options = pipelined("zb-v", 4);
  options.run.folder = (folder_ / "first").string();
  options.trainer.max_steps = 2;
  fit(options, 4, "gpt");
  auto latest = folder_ / "first/run/checkpoints/last";
  ASSERT_GT(kept(latest).size(), 100u);
  for (const auto& [strategy, ranks, stages, zero, mesh] :
       {Layout{"1f1b", 2, 2}, Layout{"ddp", 1, -1}, Layout{"1f1b", 4, 2, 3}, Layout{"ddp", 2, -1},
        Layout{"gpipe", 4, 2}, Layout{"zero2", 2, -1}, Layout{"zb-v", 4, 2, 1},
        Layout{"1f1b", 4, -1, 0, "pipeline=3 data=2-1-1"}, Layout{"1f1b", 6, 3, 2},
        Layout{"zb-v", 4, 4}}) {
    auto next = options_;
    next.trainer.strategy = strategy;
    next.trainer.accumulate_grad_batches = 4;
    next.mesh.pipeline = stages;
    next.mesh.axes = mesh;
    next.zero.stage = zero;
    latest = pass_on(latest, next, ranks, "gpt");
  }
}

// The tied embedding's gradient so far is on both of its stages' ranks only once.
TEST_F(PipelineCheckpoint, GoesOnWithAStepThatAnotherStrategyLeft) {
  const auto left = folder_ / "left";
  const auto whole = fit(accumulating(4), 2, "gpt", [&](Trainer& trainer, Task&) {
    trainer.add(std::make_shared<SavesInAStep>(left));
  });
  const auto go_on = [&](const std::string& schedule, int ranks, const std::string& mesh,
                         int zero) {
    auto options = pipelined(schedule, 4);
    options.mesh.axes = mesh;
    options.zero.stage = zero;
    options.trainer.ckpt_path = left.string();
    const auto course = fit(options, ranks, "gpt");
    EXPECT_EQ(course.summary.steps, whole.summary.steps);
    expect_close(course.state, whole.state, schedule + " on " + mesh);
  };
  go_on("1f1b", 2, "pipeline=2", 0);
  go_on("zb-v", 2, "pipeline=2", 0);
  go_on("1f1b", 4, "pipeline=2 data=2", 2);
  go_on("1f1b", 4, "pipeline=2 data=2", 3);
  // One of the replicas has only the gradient from before.
  go_on("gpipe", 4, "pipeline=2 data=1-3", 0);
}

}  // namespace
}  // namespace troika::train
