// Checkpoints that a program saves at given paths.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "tests/train/logged_rows.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/train/run/callback.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using checkpoint::CheckpointReader, checkpoint::RankState;
using checkpoint::find_checkpoint, checkpoint::load_rank_state;
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
    options_.run.overwrite = true;
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
          // These tests ignore the checkpoints that the run itself keeps.
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

// Calls a function once, after a number of passes.
class AfterMicroBatches : public Callback {
 public:
  AfterMicroBatches(int64_t micro_batches, std::function<void(FitContext&)> call)
      : left_(micro_batches), call_(std::move(call)) {}
  std::string name() const override { return "after_passes"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
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
      trainer.add(std::make_shared<AfterMicroBatches>(
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
      const auto own = checkpoint::model_state(task.module());
      const auto list = checkpoint::load_weights(weights);
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

// Calls a function in a hook of every validation, or of every end of an epoch.
class InHooks : public Callback {
 public:
  using Call = std::function<void(FitContext&)>;
  struct Calls {
    Call before_result = {}, at_end = {}, after_epoch = {};
  };
  explicit InHooks(Calls calls) : calls_(std::move(calls)) {}
  std::string name() const override { return "in_hooks"; }
  void on_validation_epoch_end(FitContext& context) override {
    if (calls_.before_result) calls_.before_result(context);
  }
  void on_validation_end(FitContext& context) override {
    if (calls_.at_end) calls_.at_end(context);
  }
  void on_train_epoch_end(FitContext& context) override {
    if (calls_.after_epoch) calls_.after_epoch(context);
  }

 private:
  const Calls calls_;
};

TEST_F(SaveCheckpoint, GoesOnWithTheWeightsWhileTheirAverageIsInTheModule) {
  options_.ema.enabled = true;
  options_.ema.decay = 0.5;
  options_.trainer.num_sanity_val_steps = 0;
  for (const char* strategy : {"ddp", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    const auto ended = folder_ / strategy, validating = ended / "validating";
    fit(
        [&](Trainer& trainer) {
          trainer.add(std::make_shared<InHooks>(InHooks::Calls{.before_result = [&](auto& context) {
            context.save_checkpoint(validating, false);
          }}));
        },
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

// A run that resumes from any of the checkpoints which the hooks of one run saved ends as that run
// did: schedule, early stopping and log rows see each validation once.
TEST_F(SaveCheckpoint, AValidationIsJudgedOnceWhicheverHookSaved) {
  options_.trainer.num_sanity_val_steps = 0;
  options_.trainer.val_check_interval = "2";  // and at the end of the epoch
  options_.trainer.loggers = {"jsonl"};
  options_.schedule.name = "plateau";
  options_.schedule.patience = 1;
  options_.schedule.threshold = 1;  // no progress is enough
  options_.early_stopping.monitor = "validation/loss";
  options_.early_stopping.patience = 100;
  options_.early_stopping.min_delta = 1e3;
  options_.checkpoint.monitor = "validation/loss";
  options_.checkpoint.save_top_k = -1;
  // The hooks that saved, in their order: name, number.
  std::vector<std::string> saved;
  fit([&](Trainer& trainer) {
    const auto count = std::make_shared<int>(0);
    const auto save_as = [&, count](const std::string& hook) {
      return [&, count, hook](FitContext& context) {
        const auto name = std::to_string((*count)++) + "-" + hook;
        EXPECT_EQ(context.save_checkpoint(folder_ / name, false), folder_ / name);
        if (context.group.rank() == 0) saved.push_back(name);
      };
    };
    trainer.add(std::make_shared<InHooks>(InHooks::Calls{.before_result = save_as("batches"),
                                                         .at_end = save_as("validation"),
                                                         .after_epoch = save_as("epoch")}));
    trainer.add(std::make_shared<AfterMicroBatches>(5, save_as("pass")));  // and a validation
  });
  ASSERT_EQ(saved.size(), 3 * (2 + 2 + 1) + 1u);
  const auto run = std::filesystem::path(options_.run.folder) / "run";
  const auto whole = folder_ / "whole";
  const auto rows = jsonl_rows(run);
  std::filesystem::rename(last(), whole);
  for (const auto& name : saved) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(options_.run.folder);
    const auto path = folder_ / name;
    EXPECT_EQ(CheckpointReader(path, 0).read("loops.validating").item<int64_t>(), 0);
    options_.trainer.ckpt_path = path.string();
    fit();
    const bool was_over = CheckpointReader(path, 0).read("loops.epoch").item<int64_t>() == 3;
    expect_same(was_over ? path : last(), whole);
    const auto more = jsonl_rows(run);
    ASSERT_LE(more.size(), rows.size());
    EXPECT_TRUE(std::equal(more.begin(), more.end(), rows.end() - static_cast<long>(more.size())));
  }
}

TEST_F(SaveCheckpoint, NotOnceTheModuleHasOtherWeights) {
  for (const char* strategy : {"ddp", "zero2"}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    std::filesystem::remove_all(options_.run.folder);
    const auto other = folder_ / strategy / "other", before = folder_ / strategy / "before";
    const auto after = folder_ / strategy / "after";
    const auto refused = [&](int rank) {
      return fmt::format(
          "[train] no run to save as {}; got a module whose `0.weight` changed after fit() on rank "
          "{}, expected the weights that fit() left (save before other weights are loaded, as by "
          "test() of a checkpoint)",
          after.string(), rank);
    };
    comm::local::run(kRanks, [&](const comm::Group& group) {
      const auto task = make_waves_task(8, 0);
      Trainer trainer(options_, group);
      trainer.add(std::make_shared<AfterMicroBatches>(
          1, [&](FitContext& context) { context.save_checkpoint(other, false); }));
      trainer.fit(*task, Waves(), Waves());
      group.barrier();  // threads share a generator of random numbers
      trainer.test(*task, Waves());
      trainer.test(*task, Waves(), "last");  // with the same weights
      trainer.save_checkpoint(before);
      // On one rank other than rank 0.
      const at::NoGradGuard no_grad;
      const auto weight = task->module().parameters().at(0);
      const auto left = weight.detach().clone();
      if (group.rank() == 2) weight.add_(1);
      EXPECT_ERROR(trainer.save_checkpoint(after), ErrorKind::usage, refused(2));
      weight.copy_(left);
      trainer.save_checkpoint(before);
      trainer.test(*task, Waves(), other.string());
      EXPECT_ERROR(trainer.save_checkpoint(after), ErrorKind::usage, refused(0));
    });
    expect_same(before, last());
    EXPECT_FALSE(std::filesystem::exists(after));
  }
}

TEST_F(SaveCheckpoint, LogsGoOnFromACheckpointOfTheirRunWhereverItIs) {
  const auto run = std::filesystem::path(options_.run.folder) / "run";
  const auto middle = folder_ / "elsewhere/middle";
  options_.trainer.loggers = {"csv", "jsonl"};
  options_.schedule.name = "constant";
  fit([&](Trainer& trainer) {
    trainer.add(std::make_shared<AfterMicroBatches>(
        5, [&](FitContext& context) { context.save_checkpoint(middle, false); }));
  });
  const auto csv = csv_rows(run), jsonl = jsonl_rows(run);
  const auto first = last();
  options_.trainer.ckpt_path = middle.string();
  fit();
  EXPECT_EQ(csv_rows(run), csv);
  EXPECT_EQ(jsonl_rows(run), jsonl);
  // Another run of that name starts new logs; so does the first when it resumes after that, though
  // its checkpoint is in the folder.
  options_.trainer.ckpt_path = "";
  options_.trainer.max_epochs = 1;
  fit();
  const auto other = jsonl_rows(run);
  EXPECT_LT(other.size(), jsonl.size());
  options_.trainer.ckpt_path = first.string();
  options_.trainer.max_epochs = 4;
  fit();
  const auto more = jsonl_rows(run);
  ASSERT_FALSE(more.empty());
  EXPECT_GT(more.front().first, jsonl.back().first);
  EXPECT_EQ(csv_rows(run).front().first, more.front().first);
}

TEST_F(SaveCheckpoint, ACheckpointIsReplacedAndNothingElseIs) {
  const auto path = folder_ / "mine";
  write_file_atomically(folder_ / "other/notes", "of somebody");
  fit({}, [&](Trainer& trainer, Task&) {
    trainer.save_checkpoint(path);
    trainer.save_checkpoint(path / "", /*weights_only=*/true);
    EXPECT_FALSE(CheckpointReader(path, 0).has("seed"));
    EXPECT_ERROR(trainer.save_checkpoint(folder_ / "other"), ErrorKind::usage,
                 "[checkpoint] cannot save a checkpoint as " + (folder_ / "other").string() +
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

TEST_F(SaveCheckpoint, InsideOfAStepItIsOfTheEndOfItsPass) {
  const auto inside = folder_ / "inside", after = folder_ / "after";
  class Early : public Callback {
   public:
    explicit Early(std::filesystem::path path) : path_(std::move(path)) {}
    std::string name() const override { return "early"; }
    void on_before_optimizer_step(FitContext& context) override {
      if (context.at.step == 2) context.save_checkpoint(path_, false);
    }

   private:
    const std::filesystem::path path_;
  };
  fit([&](Trainer& trainer) {
    trainer.add(std::make_shared<Early>(inside));
    trainer.add(std::make_shared<AfterMicroBatches>(
        5, [&](FitContext& context) { context.save_checkpoint(after, false); }));
  });
  expect_same(inside, after);
}

TEST_F(SaveCheckpoint, OneThatOnlyOneRankAsksForIsNamedSo) {
  for (const int alone : {0, 2}) {
    const auto ask = [&](FitContext& context) {
      if (context.group.rank() == alone) context.ask_for_checkpoint();
    };
    try {
      fit([&](Trainer& trainer) { trainer.add(std::make_shared<AfterMicroBatches>(2, ask)); });
      FAIL() << "rank " << alone << " cannot save alone";
    } catch (const Error& problem) {
      EXPECT_THAT(problem.what(), testing::HasSubstr(" 'checkpoint' "));
      EXPECT_THAT(problem.what(), testing::Not(testing::HasSubstr("measure_links")));
    }
  }
}

TEST_F(SaveCheckpoint, ThereMustBeARunToSave) {
  class Failing : public Callback {
   public:
    std::string name() const override { return "failing"; }
    void on_train_epoch_start(FitContext&) override { throw std::runtime_error("no more"); }
    void on_exception(FitContext& context, const std::exception&) override {
      EXPECT_ERROR(context.save_checkpoint("x", false), ErrorKind::usage,
                   "[train] save_checkpoint() of a run that has failed; got a call in "
                   "on_exception, where ranks cannot agree any more, expected "
                   "checkpoint.on_exception, or FitContext::actions.save_alone");
    }
  };
  comm::local::run(kRanks, [&](comm::Group group) {
    Trainer trainer(options_, group);
    const std::string none =
        "[train] no run to save as x; got no fit(), or one that failed, expected a call from its "
        "hooks or after it";
    EXPECT_ERROR(trainer.save_checkpoint("x"), ErrorKind::usage, none);
    trainer.add(std::make_shared<Failing>());
    const auto task = make_waves_task(8, 0);
    EXPECT_THROW(trainer.fit(*task, Waves(), Waves()), std::runtime_error);
    EXPECT_ERROR(trainer.save_checkpoint("x"), ErrorKind::usage, none);
  });
  EXPECT_FALSE(std::filesystem::exists("x"));
}

}  // namespace
}  // namespace troika::train
