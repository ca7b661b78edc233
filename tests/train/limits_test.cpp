// How much of its data a run uses, how often it validates, and when it ends.
#include "troika/train/options/limits.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>

#include "tests/support/errors.h"
#include "tests/train/numbers.h"
#include "troika/base/config.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/callbacks/timer.h"
#include "troika/train/run/callback.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BatchesOf, ANumberOrAShare) {
  EXPECT_EQ(batches_of("o", "1.0", 7), 7);
  EXPECT_EQ(batches_of("o", "1", 7), 1);
  EXPECT_EQ(batches_of("o", "10", 7), 7);
  EXPECT_EQ(batches_of("o", "0.5", 7), 3);
  EXPECT_EQ(batches_of("o", "0", 7), 0);
  EXPECT_EQ(batches_of("o", "0.0", 7), 0);
  EXPECT_EQ(batches_of("o", "0.1", 0), 0);
  EXPECT_ERROR(
      batches_of("o", "0.1", 7), ErrorKind::usage,
      "[train] o makes no sense; got 0.1 of 7 batches, which is none, expected at least one batch");
  for (const std::string text : {"-1", "1.5", "many", "nan"}) {
    EXPECT_ERROR(
        batches_of("o", text, 7), ErrorKind::usage,
        "[train] o makes no sense; got " + text +
            ", expected a number of batches, for example 10, or a fraction, for example 0.1");
  }
}

TEST(SecondsOf, DaysToSeconds) {
  EXPECT_EQ(seconds_of("o", ""), std::numeric_limits<double>::infinity());
  EXPECT_EQ(seconds_of("o", "01:02:03:04"), 93784);
  for (const std::string text : {"10", "00:00:00", "00:00:00:-1", "a:0:0:0", "0:0:0:0:0"}) {
    EXPECT_ERROR(seconds_of("o", text), ErrorKind::usage,
                 "[train] o makes no sense; got " + text + ", expected DD:HH:MM:SS");
  }
}

constexpr int64_t kSamples = 24;

// The samples of training and validation, and the steps of validations, from all ranks.
struct Seen {
  std::mutex mutex;
  std::vector<std::multiset<int>> epochs;  // of training
  std::multiset<int> validated;
  std::vector<int64_t> validations;
};

class SeeingTask : public Task {
 public:
  explicit SeeingTask(Seen& seen)
      : Task(std::make_shared<torch::nn::LinearImpl>(2, 2)), seen_(seen) {}

  at::Tensor training_step(const data::Batch& batch) override {
    const std::lock_guard lock(seen_.mutex);
    seen_.epochs.resize(std::max(seen_.epochs.size(), epoch_ + 1));
    add(seen_.epochs[epoch_], batch);
    return Task::training_step(batch);
  }
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override {
    const std::lock_guard lock(seen_.mutex);
    add(seen_.validated, batch);
    Task::validation_step(batch, evaluation);
  }
  void on_train_epoch_start(FitContext& c) override { epoch_ = static_cast<size_t>(c.at.epoch); }
  void on_validation_end(FitContext& c) override {
    if (c.group.rank() > 0) return;
    const std::lock_guard lock(seen_.mutex);
    seen_.validations.push_back(c.at.step);
  }

 private:
  static void add(std::multiset<int>& all, const data::Batch& batch) {
    for (int64_t i = 0; i < batch.size(); ++i) all.insert(batch.inputs[i][0].item<int>());
  }

  Seen& seen_;
  size_t epoch_ = 0;
};

class LimitedRun : public testing::Test {
 protected:
  LimitedRun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 2;
    options_.trainer.num_sanity_val_steps = 0;
    options_.data.global_batch_size = 4;  // 6 steps an epoch
    options_.optimizer.lr = 1e-6;
  }

  observe::RunSummary fit(int ranks = 1, const std::shared_ptr<Callback>& callback = {}) {
    seen_.epochs.clear();
    seen_.validated.clear();
    seen_.validations.clear();
    observe::RunSummary result;
    comm::local::run(ranks, [&](comm::Group group) {
      SeeingTask task(seen_);
      Trainer trainer(options_, group);
      if (callback) trainer.add(callback);
      const auto summary = trainer.fit(task, Numbers(kSamples), Numbers(kSamples));
      if (group.rank() == 0) result = summary;
    });
    return result;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  Seen seen_;
};

TEST_F(LimitedRun, TakesTheFirstBatchesOfEachEpochAndOfValidation) {
  options_.trainer.limit_train_batches = "2";
  options_.trainer.limit_val_batches = "0.5";
  std::vector<std::multiset<int>> alone;
  for (const int ranks : {1, 2, 4}) {
    const auto summary = fit(ranks);
    EXPECT_EQ(summary.steps, 4);
    EXPECT_EQ(summary.epochs, 2);
    ASSERT_EQ(seen_.epochs.size(), 2u);
    EXPECT_EQ(seen_.epochs[0].size(), 8u);
    EXPECT_NE(seen_.epochs[0], seen_.epochs[1]);
    if (ranks == 1) alone = seen_.epochs;
    EXPECT_EQ(seen_.epochs, alone);
    EXPECT_EQ(seen_.validated.size(), 2 * 12u);
    EXPECT_EQ(*seen_.validated.rbegin(), 11);
  }
}

TEST_F(LimitedRun, OverfitsOnTheSameBatches) {
  options_.trainer.overfit_batches = "2";
  EXPECT_EQ(fit().steps, 4);
  EXPECT_EQ(seen_.epochs[0].size(), 8u);
  EXPECT_EQ(seen_.epochs[0], seen_.epochs[1]);
  EXPECT_EQ(seen_.validated.size(), 2 * 8u);
}

TEST_F(LimitedRun, ValidatesInsideOfEpochs) {
  options_.trainer.val_check_interval = "4";
  fit();
  EXPECT_THAT(seen_.validations, ElementsAre(4, 6, 10, 12));
  options_.trainer.val_check_interval = "0.5";
  options_.trainer.check_val_every_n_epoch = 2;
  fit();
  EXPECT_THAT(seen_.validations, ElementsAre(9, 12));
  // Not inside of a step, of which there are 2 an epoch then.
  options_.trainer.check_val_every_n_epoch = 1;
  options_.trainer.accumulate_grad_batches = 4;
  fit();
  EXPECT_THAT(seen_.validations, ElementsAre(1, 2, 3, 4));
}

TEST_F(LimitedRun, MayNotValidateAtAll) {
  options_.trainer.limit_val_batches = "0";
  options_.trainer.num_sanity_val_steps = 2;
  options_.trainer.val_check_interval = "2";
  EXPECT_TRUE(std::isnan(fit().validation_loss));
  EXPECT_TRUE(seen_.validated.empty());
}

TEST_F(LimitedRun, SanityChecksAreForgotten) {
  const auto without = fit();
  options_.trainer.num_sanity_val_steps = 3;
  options_.trainer.max_epochs = 1;
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(fit(ranks).steps, 6);
    EXPECT_EQ(seen_.validated.size(), 12u + 24);
    EXPECT_EQ(seen_.validations.size(), 1u);
  }
  options_.trainer.ckpt_path = "last";
  options_.trainer.max_epochs = 2;
  fit();
  EXPECT_EQ(seen_.validated.size(), 24u) << "not when a run resumes";
}

TEST_F(LimitedRun, FastDevRunTriesEverythingOnce) {
  options_.trainer.fast_dev_run = 3;
  options_.trainer.max_epochs = 100;
  options_.early_stopping.monitor = "nothing";
  const auto summary = fit(2);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_EQ(summary.checkpoint, "");
  EXPECT_EQ(seen_.validated.size(), 12u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/metrics.csv"));
}

class StoppingAtOnce : public Callback {
 public:
  std::string name() const override { return "stopping_at_once"; }
  void on_train_batch_end(FitContext& c, const data::Batch&, const at::Tensor&) override {
    c.ask_to_stop("enough");
  }
};

TEST_F(LimitedRun, EndsWhenACallbackAsksButNotBeforeTheLeast) {
  options_.trainer.max_epochs = 4;
  const auto callback = std::make_shared<StoppingAtOnce>();
  EXPECT_EQ(fit(1, callback).steps, 1);
  EXPECT_EQ(seen_.validations, std::vector<int64_t>{1}) << "what it came to is validated";
  options_.trainer.min_steps = 8;
  EXPECT_EQ(fit(1, callback).steps, 8);
  options_.trainer.min_epochs = 2;
  const auto summary = fit(1, callback);
  EXPECT_EQ(summary.steps, 12);
  EXPECT_EQ(summary.epochs, 2);
  EXPECT_EQ(summary.status, "finished");
  EXPECT_THAT(seen_.validations, ElementsAre(6, 12));
}

TEST_F(LimitedRun, EndsWhenItsTimeIsOver) {
  options_.trainer.max_time = "00:00:00:00";
  EXPECT_EQ(fit(2).steps, 2) << "the clock of the first step is looked at in the second";
  options_.timer.interval = "epoch";
  EXPECT_EQ(fit(2).steps, 6) << "one epoch";
  options_.timer.interval = "step";
  options_.trainer.max_time = "99:00:00:00";
  EXPECT_EQ(fit(2).steps, 12);
}

TEST_F(LimitedRun, TimesItsStagesOverResumes) {
  options_.trainer.max_epochs = 1;
  const auto timer = std::make_shared<Timer>("99:00:00:00");
  fit(1, timer);
  EXPECT_GT(timer->training_seconds(), 0);
  EXPECT_GT(timer->validation_seconds(), 0);
  EXPECT_GT(timer->seconds_left(), 98 * 86400.0);
  EXPECT_LT(timer->seconds_left(), 99 * 86400.0);
  options_.trainer.ckpt_path = "last";
  const auto again = std::make_shared<Timer>("00:00:00:00");
  EXPECT_EQ(fit(1, again).steps, 6) << "nothing was left to do";
  EXPECT_EQ(again->validation_seconds(), timer->validation_seconds());
  options_.trainer.ckpt_path = "";
  EXPECT_EQ(fit(1, std::make_shared<Timer>("00:00:00:00")).steps, 2);
  options_.trainer.ckpt_path = "last";
  EXPECT_EQ(fit(1, std::make_shared<Timer>("00:00:00:00")).steps, 2) << "its time was over";
}

TEST_F(LimitedRun, MaySaveByTheClock) {
  options_.checkpoint.every_n_epochs = 0;
  options_.checkpoint.train_time_interval = "00:00:00:00";
  options_.checkpoint.save_top_k = -1;
  fit();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/checkpoints/epoch=0-step=1"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/checkpoints/epoch=1-step=12"));
}

TEST_F(LimitedRun, MayInsistOnDeterministicAlgorithms) {
  options_.trainer.deterministic = true;
  fit();
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  options_.trainer.deterministic = false;
  fit();
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

// A run that trained longer was saved inside an epoch.
TEST_F(LimitedRun, ARunBeyondItsLimitsIsFinishedAndKeepsItsCheckpoints) {
  options_.checkpoint.every_n_train_steps = 4;
  options_.checkpoint.save_top_k = -1;
  fit(4);
  const auto checkpoints = folder_ / "run/checkpoints";
  const auto count = [&] {
    const std::filesystem::directory_iterator entries(checkpoints);
    return std::count_if(begin(entries), end(entries), [](const auto& entry) {
      return entry.path().filename().string().starts_with("epoch=");
    });
  };
  const auto before = count();
  options_.trainer.ckpt_path = (checkpoints / "epoch=1-step=8").string();
  const auto said_with = [&](int64_t epochs, int64_t steps) {
    options_.trainer.max_epochs = epochs;
    options_.trainer.max_steps = steps;
    testing::internal::CaptureStderr();
    EXPECT_EQ(fit(4).steps, 8);
    EXPECT_TRUE(seen_.validations.empty());
    EXPECT_EQ(count(), before);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said_with(2, 5), HasSubstr("the run is finished at step 8: trainer.max_steps = 5 "
                                         "ends it; a greater one trains on\n"));
  EXPECT_THAT(said_with(1, -1), HasSubstr("the run is finished at step 8: trainer.max_epochs = 1 "
                                          "ends it; a greater one trains on\n"));
  EXPECT_THAT(said_with(1, 8),
              HasSubstr("the run is finished at step 8: trainer.max_epochs = 1 and "
                        "trainer.max_steps = 8 end it; greater ones train on\n"));
}

TEST_F(LimitedRun, WithoutMaxEpochsGoesOnUntilAnotherLimit) {
  options_.trainer.max_epochs = TrainOptions().trainer.max_epochs;
  options_.trainer.max_steps = 14;
  EXPECT_EQ(fit().steps, 14);
  EXPECT_EQ(with_default_epochs(options_).trainer.max_epochs, -1);
  options_.trainer.max_steps = -1;
  EXPECT_EQ(with_default_epochs(options_).trainer.max_epochs, 1000);
  options_.trainer.max_time = "00:00:00:01";
  EXPECT_EQ(with_default_epochs(options_).trainer.max_epochs, -1);
  options_.trainer.max_epochs = 3;
  EXPECT_EQ(with_default_epochs(options_).trainer.max_epochs, 3);
}

// The limits can be written as in Lightning.
TEST(LimitOptions, MayBeNumbersInFiles) {
  TrainOptions options;
  auto table = make_table(options);
  table.parse(
      "[trainer]\nlimit_train_batches = 0.1\nlimit_val_batches = 1.0\nlimit_test_batches = 1\n"
      "val_check_interval = 100\noverfit_batches = 0.0\n[swa]\nswa_epoch_start = 0.7\n",
      "x.toml");
  EXPECT_EQ(options.trainer.limit_train_batches, "0.1");
  EXPECT_EQ(options.trainer.limit_val_batches, "1.0");
  EXPECT_EQ(options.trainer.limit_test_batches, "1");
  EXPECT_EQ(options.trainer.val_check_interval, "100");
  EXPECT_EQ(options.swa.swa_epoch_start, "0.7");
  EXPECT_FALSE(overfits(options));
  options.trainer.overfit_batches = "0.5";
  EXPECT_TRUE(overfits(options));
  EXPECT_ERROR(table.parse("[run]\nname = 1\n", "x.toml"), ErrorKind::usage,
               "[config] run.name (x.toml:2); got 1, expected a string");
}

}  // namespace
}  // namespace troika::train
