// Runs with averaged weights, and their results.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/reader.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/run_group.h"
#include "troika/train/trainer.h"

namespace troika::train {

struct Where {
  std::string strategy;
  int ranks;
};

using State = std::map<std::string, at::Tensor>;

inline State copy_of(const torch::nn::Module& module) {
  State result;
  for (const auto& item : nn::named_state(module)) {
    result[item.first] = item.second.detach().clone();
  }
  return result;
}

inline void expect_close(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(tensor.to(at::kDouble).allclose(b.at(name).to(at::kDouble), 1e-9, 1e-11)) << name;
  }
}

inline void expect_same(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

// Copies the module at certain points of a run. It is added after the callbacks of the options.
class Watching : public Callback {
 public:
  std::string name() const override { return "watching"; }
  void on_before_optimizer_step(FitContext& c) override {
    rates.push_back(c.training.learning_rate);
  }
  void on_train_batch_end(FitContext& c, const data::Batch&, const at::Tensor&) override {
    // With zero3, parameters are not whole after a step.
    if (sees_steps) after_steps.push_back(copy_of(c.task.module()));
  }
  void on_validation_epoch_start(FitContext& c) override {
    validated.push_back(copy_of(c.task.module()));
  }
  void on_train_epoch_end(FitContext& c) override {
    after_epochs.push_back(copy_of(c.task.module()));
  }

  bool sees_steps = true;
  std::vector<double> rates;
  std::vector<State> after_steps, after_epochs, validated;
};

class Averages : public testing::Test {
 protected:
  Averages() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 3;
    options_.trainer.sync_batchnorm = true;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 6;  // 4 steps an epoch
    options_.optimizer.momentum = 0.9;
    options_.comm.bucket_megabytes = 1e-2;
  }

  // Returns the last rank's module after fit(). Then calls `after` on all ranks.
  State fit(const TrainOptions& options, int ranks,
            const std::shared_ptr<Callback>& of_last_rank = nullptr,
            const std::function<void(Trainer&)>& after = {}) const {
    State result;
    const auto train = [&](comm::Group group) {
      const auto task = make_waves_task(width_, 0);
      Trainer trainer(options, group);
      const bool is_last = group.rank() + 1 == group.size();
      if (is_last && of_last_rank) trainer.add(of_last_rank);
      trainer.fit(*task, Waves(), Waves());
      if (is_last) result = copy_of(task->module());
      if (after) after(trainer);
    };
    comm::local::run(ranks, train, world_options(options).group);
    return result;
  }
  static std::filesystem::path last(const TrainOptions& options) {
    return std::filesystem::path(options.run.folder) / "run" / "checkpoints/last";
  }
  // Returns the model of the last checkpoint.
  State saved(const TrainOptions& options) const {
    const auto list = checkpoint::load_weights(last(options) / "model.safetensors");
    return {list.begin(), list.end()};
  }
  // Returns the weights with which a run continues training.
  State raw(const TrainOptions& options) const {
    State result = saved(options);
    for (const auto& [name, tensor] :
         checkpoint::CheckpointReader(last(options), 0).read_all(kRawPrefix)) {
      result.at(name) = tensor;
    }
    return result;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  int64_t width_ = 8;
};

}  // namespace troika::train
