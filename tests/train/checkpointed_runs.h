// Runs of the trainer on meshes that save checkpoints and go on from those of other meshes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "tests/train/pipelined_runs.h"
#include "troika/checkpoint/reader.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

// Returns the weights and optimizer states of a checkpoint, from all its ranks.
inline ModuleState kept(const std::filesystem::path& checkpoint) {
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

class CheckpointedRuns : public PipelinedRuns {
 protected:
  // Resumes the checkpoint with these options, for a third step. Expects that the run begins with
  // the checkpoint's weights and states, and returns the checkpoint that it saves of them. Keeps
  // what the third step leads to in passed_.
  std::filesystem::path pass_on(const std::filesystem::path& from, TrainOptions options, int ranks,
                                const std::string& model) {
    const auto expected = kept(from);
    const auto to = folder_ / fmt::format("passed-on-{}", runs_);
    options.run.folder = (folder_ / fmt::format("next-{}", runs_)).string();
    options.trainer.max_steps = 3;
    options.trainer.ckpt_path = from.string();
    passed_ = fit(options, ranks, model, [&](Trainer& trainer, Task&) {
      trainer.add(std::make_shared<SavesAtStart>(to));
    });
    const auto found = kept(to);
    EXPECT_EQ(found.size(), expected.size()) << options.trainer.strategy;
    for (const auto& [name, tensor] : expected) {
      const auto here = found.find(name);
      EXPECT_TRUE(here != found.end() && here->second.equal(tensor))
          << name << ", " << options.trainer.strategy << " on " << ranks;
    }
    return to;
  }

  PipelineCourse passed_;
};

}  // namespace troika::train
