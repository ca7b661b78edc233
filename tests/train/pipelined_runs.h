// Runs of the trainer on pipelines and tensor axes, on ranks that are threads.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/train/logged_rows.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/train/run/run_group.h"
#include "troika/train/trainer.h"

namespace troika::train {

// A name that ends in "+lora" is that of a model with adapters.
inline nn::ModelOptions sizes_of(const std::string& model) {
  constexpr std::string_view kLora = "+lora";
  if (model.ends_with(kLora)) {
    auto sizes = sizes_of(model.substr(0, model.size() - kLora.size()));
    sizes.lora = {.rank = 2, .alpha = 4, .dropout = 0.2};
    return sizes;
  }
  if (model == "gpt64") {
    return {.name = "gpt", .vocab_size = 13, .context = 64, .layers = 3, .heads = 2, .width = 64};
  }
  // gpt8 and llama8 read 8 tokens.
  if (model.starts_with("gpt")) {
    const bool is_longer = model.starts_with("gpt8");
    return {.name = "gpt",
            .dropout = model == "gpt" || model == "gpt8" ? 0 : 0.3,
            .vocab_size = 13,
            .context = is_longer ? 8 : 5,
            .layers = is_longer ? 2 : 6,
            .heads = 2,
            .width = 8};
  }
  // llama-eighths has blocks for eight stages and heads for eight ranks.
  if (model.starts_with("llama")) {
    const bool in_eighths = model == "llama-eighths";
    return {.name = "llama",
            .vocab_size = 13,
            .context = model == "llama8" ? 8 : 6,
            .layers = in_eighths ? 6 : 2,
            .heads = in_eighths ? 8 : 4,
            .width = 16,
            .kv_heads = 2,
            .ffn_width = in_eighths ? 8 : 12};
  }
  if (model == "resnet20") return {.name = model, .num_classes = 5, .image_size = 8};
  if (model == "unet") return {.name = model, .num_classes = 5, .image_size = 32};
  return {.name = "mlp", .num_classes = 5, .image_size = 4, .hidden_layers = 7, .hidden_width = 6};
}

// A data set with the same samples in every process.
class SizedSamples : public data::Dataset {
 public:
  explicit SizedSamples(nn::ModelOptions model, int64_t size = 44)
      : model_(std::move(model)), size_(size) {}
  int64_t size() const override { return size_; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto rows =
        at::tensor(std::vector<int64_t>(indices.begin(), indices.end()), at::kLong).unsqueeze(1);
    if (nn::sample_kind(model_.name) == nn::SampleKind::text) {
      const auto tokens = (rows * 7 + at::arange(model_.context, at::kLong) * 3).remainder(13);
      return {tokens, tokens.roll(1, 1)};
    }
    const int64_t side = model_.image_size;
    const auto values =
        at::sin((rows + 1) * 0.37 * at::arange(1, 3 * side * side + 1, at::kDouble));
    return {values.view({-1, 3, side, side}).to(at::kFloat), rows.squeeze(1).remainder(5)};
  }
  int64_t num_classes() const override { return 5; }
  std::vector<int64_t> input_shape() const override { return {}; }

 private:
  const nn::ModelOptions model_;
  const int64_t size_;
};

// Makes a model under a lock, because ranks are threads and initial weights come from one
// generator.
inline std::shared_ptr<nn::Model> make_sized_model(const std::string& name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  at::manual_seed(5);
  return nn::make_model(sizes_of(name));
}

using ModuleState = std::map<std::string, at::Tensor>;

struct PipelineCourse {
  observe::RunSummary summary;
  LoggedRows rows;
  ModuleState state;  // of the module of rank 0
};

class PipelinedRuns : public testing::Test {
 protected:
  PipelinedRuns() {
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.log_every_n_steps = 1;
    options_.trainer.gradient_clip_val = 0.2;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.benchmark = false;
    options_.data.workers = 0;
    options_.data.global_batch_size = 4;  // 11 batches an epoch
    options_.optimizer.name = "adamw";
    options_.optimizer.lr = 0.02;
    options_.schedule.name = "constant";  // runs of any number of steps begin alike
    options_.comm.bucket_megabytes = 1e-3;
  }

  // Trains, and expects the same module, losses and metrics on every rank at the end.
  PipelineCourse fit(TrainOptions options, int ranks, const std::string& model,
                     const std::function<void(Trainer&, Task&)>& around = {}) {
    const auto folder = folder_ / fmt::format("{}", ++runs_);
    if (options.run.folder == TrainOptions().run.folder) options.run.folder = folder.string();
    PipelineCourse course;
    const auto train = [&](const comm::Group& world) {
      Task task(make_sized_model(model));
      Trainer trainer(options, world);
      if (around) around(trainer, task);
      const SizedSamples samples(sizes_of(model)), few(sizes_of(model), 11);
      const auto summary = trainer.fit(task, samples, few);
      ModuleState state;
      for (const auto& entry : nn::named_state(task.module())) {
        state[entry.first] = entry.second.detach().clone();
        const auto first = entry.second.detach().clone();
        world.broadcast(first, 0);
        EXPECT_TRUE(first.equal(entry.second)) << entry.first << " on rank " << world.rank();
      }
      const auto numbers = at::tensor(
          {summary.train_loss, summary.validation_loss, summary.validation_accuracy}, at::kDouble);
      const auto first = numbers.clone();
      world.broadcast(first, 0);
      EXPECT_TRUE(first.equal(numbers)) << world.rank();
      if (world.rank() == 0) course = {summary, csv_rows(trainer.folder()), state};
    };
    comm::local::run(ranks, train, world_options(options).group);
    return course;
  }

  TrainOptions accumulating(int64_t micro_batches) const {
    auto options = options_;
    options.trainer.accumulate_grad_batches = micro_batches;
    return options;
  }
  TrainOptions pipelined(const std::string& strategy, int64_t micro_batches) const {
    auto options = options_;
    options.trainer.strategy = strategy;
    options.pipeline.micro_batches = micro_batches;
    return options;
  }

  static void expect_close(const ModuleState& found, const ModuleState& expected,
                           const std::string& what) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      // Running statistics are updated once a step, from all its micro-batches.
      if (name.find("running_") != std::string::npos || name.ends_with("batches_tracked")) continue;
      EXPECT_TRUE(found.at(name).allclose(tensor, 1e-10, 1e-10)) << name << ", " << what;
    }
  }

  static void expect_same_course(const PipelineCourse& found, const PipelineCourse& expected,
                                 const std::string& what) {
    EXPECT_EQ(found.summary.steps, expected.summary.steps) << what;
    EXPECT_EQ(found.summary.samples, expected.summary.samples) << what;
    EXPECT_NEAR(found.summary.train_loss, expected.summary.train_loss, 1e-10) << what;
    EXPECT_NEAR(found.summary.validation_loss, expected.summary.validation_loss, 1e-10) << what;
    EXPECT_EQ(found.summary.validation_accuracy, expected.summary.validation_accuracy) << what;
    EXPECT_EQ(found.rows.size(), expected.rows.size()) << what;
    expect_close(found.state, expected.state, what);
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  int runs_ = 0;
};

}  // namespace troika::train
