// Checkpoints that a program asks for by their path.
#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "tests/train/saved_state.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/train/callback.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/fit_context.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

constexpr int kRanks = 4;

class SaveCheckpoint : public testing::Test {
 protected:
  SaveCheckpoint() {
    options_.trainer.max_epochs = 3;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.accumulate_grad_batches = 2;
    options_.data.global_batch_size = 8;  // 3 passes an epoch, of two and one a step
    options_.optimizer.name = "adamw";
    options_.optimizer.lr = 0.05;
    options_.run.folder = (folder_ / "runs").string();
  }

  // Fits on all ranks, then calls `after` on each.
  void fit(const std::function<void(Trainer&)>& before = {},
           const std::function<void(Trainer&, Task&)>& after = {}) {
    comm::local::run(kRanks, [&](comm::Group group) {
      const auto task = make_waves_task(8, 0);
      Trainer trainer(options_, group);
      if (before) before(trainer);
      trainer.fit(*task, Waves(), Waves());
      if (after) after(trainer, *task);
    });
  }

  std::filesystem::path last() const {
    return find_checkpoint(std::filesystem::path(options_.run.folder) / "run/checkpoints", "last");
  }

  static void expect_same(const std::filesystem::path& a, const std::filesystem::path& b) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto one = load_rank_state(a, rank), other = load_rank_state(b, rank);
      for (const auto part : {&RankState::model, &RankState::rest}) {
        const auto& x = one.*part;
        const auto& y = other.*part;
        ASSERT_EQ(x.size(), y.size());
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(x[i].first, y[i].first);
          // Which checkpoints of its own the run keeps is not what these are about.
          if (is_measured(x[i].first) || x[i].first.starts_with("callback.model_checkpoint")) {
            continue;
          }
          EXPECT_TRUE(x[i].second.equal(y[i].second)) << x[i].first << " of rank " << rank;
        }
      }
    }
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

// Calls something once, after so many passes.
class AfterPasses : public Callback {
 public:
  AfterPasses(int64_t passes, std::function<void(FitContext&)> call)
      : left_(passes), call_(std::move(call)) {}
  std::string name() const override { return "after_passes"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, double) override {
    if (--left_ == 0) call_(context);
  }

 private:
  int64_t left_;
  const std::function<void(FitContext&)> call_;
};

TEST_F(SaveCheckpoint, ARunGoesOnFromOneThatAHookSavedInTheMiddleOfAnAccumulation) {
  for (const char* strategy : {"ddp", "zero2", "zero3"}) {
    options_.trainer.strategy = strategy;
    options_.trainer.ckpt_path = "";
    const auto path = folder_ / strategy;
    fit([&](Trainer& trainer) {
      trainer.add(std::make_shared<AfterPasses>(
          4, [&](FitContext& context) { EXPECT_EQ(context.save_checkpoint(path, false), path); }));
    });
    const auto whole = folder_ / (std::string(strategy) + "-whole");
    std::filesystem::rename(last(), whole);
    std::filesystem::remove_all(options_.run.folder);
    EXPECT_EQ(CheckpointReader(path, 0).read("loops.position").item<int64_t>(), 8) << strategy;
    options_.trainer.ckpt_path = path.string();
    fit();
    expect_same(last(), whole);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
}

TEST_F(SaveCheckpoint, BetweenRunsItIsTheEndOfTheLatest) {
  for (const char* strategy : {"ddp", "zero3", "local_sgd"}) {
    options_.trainer.strategy = strategy;
    options_.trainer.max_epochs = 2;
    options_.trainer.ckpt_path = "";
    const auto path = folder_ / strategy, weights = folder_ / "weights" / strategy;
    fit({}, [&](Trainer& trainer, Task& task) {
      EXPECT_EQ(trainer.save_checkpoint(path), path);
      EXPECT_EQ(trainer.save_checkpoint(weights, /*weights_only=*/true), weights);
      const auto own = model_state(task.module());
      const auto list = load_weights(weights);
      const std::map<std::string, at::Tensor> saved(list.begin(), list.end());
      ASSERT_EQ(saved.size(), own.size());
      for (const auto& [name, tensor] : own) {
        EXPECT_TRUE(saved.at(name).equal(tensor)) << strategy << " " << name;
      }
    });
    expect_same(path, last());
    options_.trainer.ckpt_path = weights.string();
    EXPECT_ERROR(fit(), ErrorKind::usage,
                 "[train] cannot resume from " + weights.string() +
                     "; got weights alone, expected a checkpoint of a run without "
                     "checkpoint.weights_only (model.weights starts a new run from them)");
    options_.trainer.ckpt_path = path.string();
    options_.trainer.max_epochs = 3;
    fit();
    EXPECT_EQ(CheckpointReader(last(), 0).read("loops.epoch").item<int64_t>(), 3);
  }
}

// Saves once all batches of a validation are done, and the average is in the module.
class InValidations : public Callback {
 public:
  explicit InValidations(std::filesystem::path path) : path_(std::move(path)) {}
  std::string name() const override { return "in_validations"; }
  void on_validation_epoch_end(FitContext& context) override {
    context.save_checkpoint(path_, false);
  }

 private:
  const std::filesystem::path path_;
};

TEST_F(SaveCheckpoint, GoesOnWithTheWeightsWhileTheirAverageIsInTheModule) {
  options_.ema.enabled = true;
  options_.ema.decay = 0.5;
  options_.trainer.num_sanity_val_steps = 0;
  for (const char* strategy : {"ddp", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    const auto ended = folder_ / strategy, validating = ended / "validating";
    fit([&](Trainer& trainer) { trainer.add(std::make_shared<InValidations>(validating)); },
        [&](Trainer& trainer, Task&) { trainer.save_checkpoint(ended / "end"); });
    expect_same(ended / "end", last());
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto in_validation = CheckpointReader(validating, rank).read_all("raw_model.");
      const auto at_end = CheckpointReader(last(), rank).read_all("raw_model.");
      ASSERT_EQ(in_validation.size(), at_end.size());
      ASSERT_FALSE(at_end.empty());
      for (size_t i = 0; i < at_end.size(); ++i) {
        EXPECT_TRUE(in_validation[i].second.equal(at_end[i].second)) << at_end[i].first;
      }
    }
  }
}

TEST_F(SaveCheckpoint, ACheckpointIsReplacedAndNothingElseIs) {
  const auto path = folder_ / "mine";
  write_file_atomically(folder_ / "other/notes", "of somebody");
  fit({}, [&](Trainer& trainer, Task&) {
    trainer.save_checkpoint(path);
    trainer.save_checkpoint(path / "", /*weights_only=*/true);
    EXPECT_FALSE(CheckpointReader(path, 0).has("seed"));
    EXPECT_ERROR(trainer.save_checkpoint(folder_ / "other"), ErrorKind::usage,
                 "[train] cannot save a checkpoint as " + (folder_ / "other").string() +
                     "; got something else there, expected a new path, or the folder of a "
                     "checkpoint to replace");
  });
  EXPECT_EQ(read_file(folder_ / "other/notes"), "of somebody");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("mine", "other", "runs"));
}

TEST_F(SaveCheckpoint, ThereMustBeARunToSaveBetweenItsPasses) {
  comm::local::run(kRanks, [&](comm::Group group) {
    Trainer trainer(options_, group);
    const std::string none =
        "[train] no run to save as x; got no fit(), or one that failed, expected a call from its "
        "hooks or after it";
    EXPECT_ERROR(trainer.save_checkpoint("x"), ErrorKind::usage, none);
    class Early : public Callback {
     public:
      std::string name() const override { return "early"; }
      void on_before_optimizer_step(FitContext& context) override {
        context.save_checkpoint("x", false);
      }
    };
    trainer.add(std::make_shared<Early>());
    const auto task = make_waves_task(8, 0);
    EXPECT_ERROR(trainer.fit(*task, Waves(), Waves()), ErrorKind::usage,
                 "[train] save_checkpoint() inside of a training step; got a call in step 1, "
                 "expected a call between passes (use on_train_batch_end, or "
                 "ask_for_checkpoint())");
    EXPECT_ERROR(trainer.save_checkpoint("x"), ErrorKind::usage, none);
  });
  EXPECT_FALSE(std::filesystem::exists("x"));
}

}  // namespace
}  // namespace troika::train
