// Checkpoints of pipelines: which runs can resume from them, and from which checkpoints pipelines
// can resume.
#include "tests/train/pipelined_runs.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/reader.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {
namespace {

class PipelineCheckpoint : public PipelinedRuns {};

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

// Returns the weights and optimizer states of a checkpoint, from all its ranks.
ModuleState kept(const std::filesystem::path& checkpoint) {
  ModuleState result;
  const checkpoint::CheckpointReader saved(checkpoint, 0);
  for (const std::string prefix : {"model.", "optimizer.state."}) {
    for (const auto& [name, tensor] : saved.read_all(prefix)) result[prefix + name] = tensor;
  }
  return result;
}

// Saves the state at the start of a run.
class SavesAtStart : public Callback {
 public:
  explicit SavesAtStart(std::filesystem::path to) : to_(std::move(to)) {}
  std::string name() const override { return "saves_at_start"; }
  void on_train_start(FitContext& context) override { context.save_checkpoint(to_, false); }

 private:
  const std::filesystem::path to_;
};

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
  const auto expected = kept(latest);
  ASSERT_GT(expected.size(), 100u);
  int number = 0;
  for (const auto& [strategy, ranks, stages, zero, mesh] :
       {Layout{"1f1b", 2, 2}, Layout{"ddp", 1, -1}, Layout{"1f1b", 4, 2, 3}, Layout{"ddp", 2, -1},
        Layout{"gpipe", 4, 2}, Layout{"zero2", 2, -1}, Layout{"zb-v", 4, 2, 1},
        Layout{"1f1b", 4, -1, 0, "pipeline=3 data=2-1-1"}, Layout{"1f1b", 6, 3, 2},
        Layout{"zb-v", 4, 4}}) {
    auto next = options_;
    next.run.folder = (folder_ / fmt::format("next-{}", ++number)).string();
    next.trainer.strategy = strategy;
    next.trainer.accumulate_grad_batches = 4;
    next.mesh.pipeline = stages;
    next.mesh.axes = mesh;
    next.zero.stage = zero;
    next.trainer.max_steps = 3;
    next.trainer.ckpt_path = latest.string();
    latest = folder_ / fmt::format("passed-on-{}", number);
    fit(next, ranks, "gpt",
        [&](Trainer& trainer, Task&) { trainer.add(std::make_shared<SavesAtStart>(latest)); });
    const auto found = kept(latest);
    ASSERT_EQ(found.size(), expected.size()) << strategy;
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(found.at(name).equal(tensor)) << name << ", " << strategy << " on " << ranks;
    }
  }
}

// Saves after a micro-batch in the middle of a step.
class SavesInAStep : public Callback {
 public:
  explicit SavesInAStep(std::filesystem::path to) : to_(std::move(to)) {}
  std::string name() const override { return "saves_in_a_step"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
    if (context.at.step == 1 && context.at.micro_batch == 2) context.save_checkpoint(to_, false);
  }

 private:
  const std::filesystem::path to_;
};

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
