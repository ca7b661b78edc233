// A run of a small GPT with its own cache folder. Tests can read the choices that it made at its
// start.
#pragma once

#include <gmock/gmock.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/nn/zoo.h"
#include "troika/train/options/options.h"
#include "troika/train/trainer.h"
#include "troika/train/tuning/tuning.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::train {

class Tokens : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto tokens = at::zeros({static_cast<int64_t>(indices.size()), 8}, at::kLong);
    return {tokens, tokens};
  }
  int64_t num_classes() const override { return 5; }
  std::vector<int64_t> input_shape() const override { return {8}; }
};

class TunedRun : public testing::Test {
 protected:
  void SetUp() override {
    const char* before = std::getenv("XDG_CACHE_HOME");
    if (before) before_ = before;
    ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
    options_.run.folder = (folder_ / "runs").string();
    options_.trainer.max_epochs = 1;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 4;
    options_.model = {
        .name = "gpt", .vocab_size = 5, .context = 8, .layers = 1, .heads = 2, .width = 8};
  }
  void TearDown() override {
    before_ ? ::setenv("XDG_CACHE_HOME", before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  }
  std::vector<TuningEntry> timed() const { return TuningFile::of_user().read(); }

  const TemporaryFolder folder_;
  TrainOptions options_;
  std::optional<std::string> before_;
};

// A run that is long enough to time two memory orders of weights.
class TunedOrder : public TunedRun {
 protected:
  using Option = std::string TrainOptions::Trainer::*;

  TunedOrder(Option option, std::string usual, std::string other)
      : option_(option), usual_(std::move(usual)), other_(std::move(other)) {}
  void SetUp() override {
    TunedRun::SetUp();
    options_.trainer.max_epochs = -1;
    options_.trainer.max_steps = kMicroBatchesWorthTiming;
  }
  // Returns the order that the run uses; "auto" if nothing was timed.
  virtual std::string tuned(const comm::Group& group) const = 0;
  std::string tuned() const { return tuned(comm::local::alone()); }

  // `question` is the text of the entry in the file.
  void expect_timed_once(const std::string& question) {
    options_.trainer.max_steps = kMicroBatchesWorthTiming - 1;
    EXPECT_EQ(tuned(), "auto");
    EXPECT_THAT(timed(), testing::IsEmpty());
    options_.trainer.max_steps = kMicroBatchesWorthTiming;
    const auto choice = tuned();
    EXPECT_THAT(choice, testing::AnyOf(usual_, other_));
    EXPECT_THAT(timed(), testing::SizeIs(1));
    auto entry = timed().at(0);
    EXPECT_EQ(entry.question.what, question);
    EXPECT_EQ(entry.candidates.at(0).name, usual_) << "the rule of auto comes first";
    // The file decides from now on, on all ranks.
    entry.choice = choice == usual_ ? other_ : usual_;
    TuningFile::of_user().add(entry);
    comm::local::run(4, [&](const comm::Group& group) { EXPECT_EQ(tuned(group), entry.choice); });
    EXPECT_THAT(timed(), testing::SizeIs(1));
  }

  // `models` have no choice of the order.
  void expect_the_option_if_nothing_is_timed(const std::vector<const char*>& models) {
    options_.trainer.deterministic = true;
    EXPECT_EQ(tuned(), "auto");
    options_.trainer.deterministic = false;
    options_.trainer.benchmark = false;
    EXPECT_EQ(tuned(), "auto");
    options_.trainer.benchmark = true;
    options_.trainer.strategy = "zero2";
    EXPECT_EQ(tuned(), "auto");
    options_.trainer.strategy = "ddp";
    options_.trainer.*option_ = other_;
    EXPECT_EQ(tuned(), other_);
    options_.trainer.*option_ = "auto";
    for (const char* model : models) {
      options_.model.name = model;
      EXPECT_EQ(tuned(), "auto") << model;
    }
    EXPECT_THAT(timed(), testing::IsEmpty());
  }

  void expect_the_order_of_the_checkpoint(const data::Dataset& data) {
    for (const auto& name : {usual_, other_, std::string("auto")}) {
      options_.run.name = name;
      options_.trainer.ckpt_path.clear();
      options_.trainer.*option_ = name;
      options_.trainer.max_epochs = 1;
      options_.trainer.max_steps = 1;
      Task task(nn::make_model(options_.model));
      Trainer(options_, comm::local::alone()).fit(task, data, data);
      options_.trainer.ckpt_path = "last";
      options_.trainer.*option_ = "auto";
      options_.trainer.max_epochs = -1;
      options_.trainer.max_steps = kMicroBatchesWorthTiming;
      EXPECT_EQ(tuned(), name);
    }
  }

  const Option option_;
  const std::string usual_, other_;
};

}  // namespace troika::train
