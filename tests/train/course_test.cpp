// How runs of one name follow each other: which checkpoint a start resumes from, which files it
// leaves alone, and how runs end.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <vector>

#include "tests/checkpoint/saved_state.h"
#include "tests/train/error_words.h"
#include "tests/train/waves.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/comm/local/local.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Records starts and validations, and can end them.
class Turns : public Callback {
 public:
  std::string name() const override { return "turns"; }
  bool keeps_time() const override { return true; }
  void on_train_start(FitContext& c) override {
    if (seconds) *seconds = c.seconds;
    if (gathers) c.group.barrier();
  }
  void on_validation_start(FitContext& c) override {
    validated.push_back(c.at.step);
    if (c.at.step == fails_at) throw std::runtime_error("no validation");
    if (c.at.step == stops_at) c.ask_to_stop("enough");
  }

  double* seconds = nullptr;  // the time at the start goes here
  std::vector<int64_t> validated;
  bool gathers = false;
  int64_t fails_at = -1;
  int64_t stops_at = -1;
};

class Course : public testing::Test {
 protected:
  Course() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.num_sanity_val_steps = 0;
    options_.data.global_batch_size = 4;  // 6 passes an epoch
    options_.optimizer.name = "adamw";
    options_.schedule.name = "constant";
  }

  observe::RunSummary fit(int ranks = 1, int64_t stop_after = -1,
                          const std::function<void(Turns&, int rank)>& prepare = {}) {
    observe::RunSummary result;
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_waves_task(width_, 0);
      Trainer trainer(options_, group);
      if (stop_after >= 0) {
        trainer.ask_to_stop([micro_batches = int64_t{0}, stop_after]() mutable {
          return ++micro_batches >= stop_after ? cluster::StopRequest::save_and_stop
                                               : cluster::StopRequest::none;
        });
      }
      const auto turns = std::make_shared<Turns>();
      if (prepare) prepare(*turns, group.rank());
      trainer.add(turns);
      const auto summary = trainer.fit(*task, Waves(), Waves());
      const at::NoGradGuard no_grad;
      for (const auto& parameter : task->module().parameters()) {
        EXPECT_TRUE(at::isfinite(parameter).all().item<bool>());
      }
      if (group.rank() != 0) return;
      result = summary;
      turns_ = *turns;
    });
    return result;
  }

  std::filesystem::path checkpoints() const { return folder_ / "run" / "checkpoints"; }
  std::string last() const {
    return checkpoint::linked_checkpoint(checkpoints(), "last").filename();
  }
  std::vector<std::string> folders() const {
    std::vector<std::string> result;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints())) {
      if (entry.is_directory() && !entry.is_symlink()) result.push_back(entry.path().filename());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  int64_t width_ = 4;
  Turns turns_;
};

// If the ranks did not report their calls to each other, both would wait until the timeout.
TEST_F(Course, ACollectiveInAHookOfOneRankIsNamedAtOnce) {
  options_.data.global_batch_size = 8;
  options_.trainer.sync_batchnorm = true;  // with a group of its own
  for (const int alone : {0, 3}) {
    const auto gather = [&](Turns& turns, int rank) { turns.gathers = rank == alone; };
    const auto words = error_of([&] { fit(4, -1, gather); });
    EXPECT_THAT(words, HasSubstr("ranks wait for each other in calls of different groups"));
    EXPECT_THAT(words, HasSubstr(fmt::format("rank {} waits in barrier", alone)));
  }
}

TEST_F(Course, SaysWhatItIsAboutToDoAndShowsValidationsToo) {
  options_.trainer.enable_progress_bar = true;
  options_.trainer.num_sanity_val_steps = 2;
  ::setenv("TROIKA_TTY", "1", 1);
  testing::internal::CaptureStderr();
  fit(2);
  const auto shown = testing::internal::GetCapturedStderr();
  ::unsetenv("TROIKA_TTY");
  EXPECT_THAT(shown, HasSubstr("run starts\n  model "));
  EXPECT_THAT(shown, HasSubstr("26 samples, 26 to validate"));
  EXPECT_THAT(shown, HasSubstr("12 steps; 6 an epoch"));
  EXPECT_THAT(shown, HasSubstr("\rsanity check "));
  EXPECT_THAT(shown, HasSubstr("\rvalidation "));
}

// By this time, ranks decide when to save and stop.
TEST_F(Course, ARunThatGoesOnHasOneTimeOnAllRanks) {
  fit(2, 1);
  options_.trainer.ckpt_path = "last";
  std::array<double, 2> seconds{};
  fit(2, -1, [&](Turns& turns, int rank) { turns.seconds = &seconds[static_cast<size_t>(rank)]; });
  EXPECT_GT(seconds[0], 0);
  EXPECT_THAT(seconds, Each(seconds[0]));
}

TEST_F(Course, WhatIsStartedAgainGoesOnFromItsOwnCheckpointsOnly) {
  EXPECT_FALSE(checkpoint::has_last_of_course(checkpoints()));
  fit(1, 1);
  EXPECT_TRUE(checkpoint::has_last_of_course(checkpoints()));
  // Another run of the name that fails before it saves.
  EXPECT_THROW(fit(1, -1, [](Turns& turns, int) { turns.fails_at = 6; }), std::runtime_error);
  EXPECT_EQ(last(), "epoch=0-step=1");
  EXPECT_FALSE(checkpoint::has_last_of_course(checkpoints()));
  options_.trainer.ckpt_path = "last";
  fit(1, 1);
  EXPECT_TRUE(checkpoint::has_last_of_course(checkpoints()));
}

TEST_F(Course, CheckpointsOfEarlierRunsStay) {
  options_.checkpoint.save_top_k = -1;
  fit();
  const auto before = folders();
  fit(1, 1);
  EXPECT_THAT(before, testing::IsSubsetOf(folders()));
  // Later checkpoints of the run also stay when it resumes from an earlier one.
  options_.checkpoint.save_top_k = 1;
  options_.trainer.ckpt_path = (checkpoints() / before.front()).string();
  options_.trainer.max_epochs = 3;
  fit(1, 7);
  EXPECT_TRUE(std::filesystem::exists(checkpoints() / before.back()));
}

TEST_F(Course, APathThroughALinkMeansWhatItPointsTo) {
  options_.checkpoint.every_n_train_steps = 1;
  fit(1, 1);
  std::vector<std::string> chosen{"epoch=0-step=1"};  // which stay
  for (const auto& [path, expected] :
       {std::pair("last", "epoch=0-step=2"), {"last/", "epoch=0-step=3"}}) {
    options_.trainer.ckpt_path = (checkpoints() / path).string();
    fit(1, 1);
    chosen.push_back(expected);
    EXPECT_EQ(last(), expected);
    EXPECT_THAT(folders(), testing::UnorderedElementsAreArray(chosen));
    EXPECT_EQ(checkpoint::linked_checkpoint(checkpoints(), "best").filename(), expected);
  }
}

// A copy as made by scp -r.
TEST_F(Course, ACopyThatFollowedLinksGoesOn) {
  fit(1, 6);
  for (const bool keeps_original : {true, false}) {
    const auto from = folder_ / "run";
    options_.run.name = keeps_original ? "with" : "without";
    const auto copy = folder_ / options_.run.name / "checkpoints";
    std::filesystem::create_directories(copy);
    std::filesystem::copy(from, folder_ / options_.run.name,
                          std::filesystem::copy_options::recursive);
    ASSERT_FALSE(std::filesystem::is_symlink(copy / "last"));
    if (!keeps_original) std::filesystem::remove_all(copy / "epoch=0-step=6");
    options_.trainer.ckpt_path = "last";
    EXPECT_EQ(fit().steps, 12);
    EXPECT_EQ(checkpoint::linked_checkpoint(copy, "last").filename(), "epoch=2-step=12");
    EXPECT_TRUE(std::filesystem::exists(copy / "last.safetensors"));
    EXPECT_EQ(std::filesystem::is_symlink(copy / "best"), true);
    options_.run.name = "run";
    options_.trainer.ckpt_path.clear();
  }
}

TEST_F(Course, FewerPassesAStepMayFollowMore) {
  options_.trainer.accumulate_grad_batches = 5;
  fit(1, 3);
  options_.trainer.accumulate_grad_batches = 1;
  options_.trainer.ckpt_path = "last";
  // 3 passes are left of the epoch, and 6 of the next.
  EXPECT_EQ(fit().steps, 9);
}

TEST_F(Course, FewerPassesAStepMayFollowMoreUpToMaxSteps) {
  options_.trainer.accumulate_grad_batches = 5;
  fit(1, 3);
  options_.trainer.accumulate_grad_batches = 2;
  options_.trainer.ckpt_path = "last";
  options_.trainer.max_steps = 1;
  EXPECT_EQ(fit().steps, 1);
}

TEST_F(Course, ARunKilledInItsLastValidationMakesIt) {
  options_.trainer.max_steps = 8;
  options_.checkpoint.every_n_train_steps = 8;
  options_.trainer.ckpt_path = "last";
  for (const int ranks : {1, 2}) {
    options_.run.name = "killed-" + std::to_string(ranks);
    EXPECT_ANY_THROW(fit(ranks, -1, [](Turns& turns, int) { turns.fails_at = 8; }));
    const auto summary = fit(ranks);
    EXPECT_THAT(turns_.validated, ElementsAre(8));
    EXPECT_GT(summary.validation_loss, 0);
    fit(ranks);
    EXPECT_THAT(turns_.validated, ElementsAre()) << "once is enough";
  }
}

TEST_F(Course, AValidationThatEndsTheRunIsItsLast) {
  options_.trainer.val_check_interval = "2";
  fit(1, -1, [](Turns& turns, int) { turns.stops_at = 4; });
  EXPECT_THAT(turns_.validated, ElementsAre(2, 4));
}

// fit() checks them.
TEST_F(Course, AStoppedRunLeavesAWholeModule) {
  width_ = 2600;  // zero3 shards blocks of this width, and releases their parameters
  options_.trainer.strategy = "zero3";
  EXPECT_EQ(fit(2, 1).status, "stopped");
}

TEST_F(Course, AnotherOptimizerIsRefusedByWhatItKeeps) {
  options_.trainer.max_epochs = 1;
  fit();
  options_.trainer.max_epochs = 2;
  options_.trainer.ckpt_path = "last";
  options_.optimizer.name = "sgd";
  options_.optimizer.momentum = 0.9;
  EXPECT_THAT(
      error_of([&] { fit(); }),
      AllOf(HasSubstr(" with another optimizer; got one that keeps momentum_buffer"),
            HasSubstr(", expected the one that kept exp_avg, exp_avg_sq, step (optim.name")));
}

// Its third pass has no loss, on one rank.
class Diverging : public Task {
 public:
  Diverging(double loss, bool is_victim)
      : Task(make_waves_model(6, 0)), loss_(loss), is_victim_(is_victim) {}
  at::Tensor training_step(const data::Batch& batch) override {
    const auto loss = Task::training_step(batch);
    if (++micro_batches_ != 3 || !is_victim_) return loss;
    third = batch;
    return loss * loss_;
  }
  data::Batch third;

 private:
  const double loss_;
  const bool is_victim_;
  int64_t micro_batches_ = 0;
};

TEST_F(Course, ALossThatIsNoNumberEndsTheRunAndLeavesItsBatch) {
  options_.data.global_batch_size = 8;  // batch norm wants more than one sample on each rank
  options_.trainer.max_steps = 3;
  for (const auto& [victim, loss] : {std::pair(0, NAN), std::pair(2, INFINITY)}) {
    SCOPED_TRACE(victim);
    const auto train = [&, victim = victim, loss = loss] {
      comm::local::run(4, [&](comm::Group group) {
        Diverging task(loss, group.rank() == victim);
        Trainer trainer(options_, group);
        try {
          trainer.fit(task, Waves(), Waves());
        } catch (const Error& error) {
          if (group.rank() != victim) {
            EXPECT_EQ(error.kind(), ErrorKind::peer);
            throw;
          }
          EXPECT_EQ(error.kind(), ErrorKind::failure);
          const auto file =
              folder_ / fmt::format("run/nonfinite-step-2-rank-{}.safetensors", victim);
          EXPECT_EQ(
              std::string(error.what()),
              fmt::format("[train] the training loss of step 2 on rank {} is no number; got "
                          "{}, expected a finite one (the batch is in {}; a lower optim.lr, a "
                          "warm-up or trainer.gradient_clip_val may help; "
                          "trainer.terminate_on_nan=false trains on)",
                          victim, loss, file.string()));
          const auto saved = checkpoint::load_safetensors(file);
          ASSERT_THAT(saved, SizeIs(2));
          EXPECT_EQ(saved[0].first, "inputs");
          EXPECT_TRUE(saved[0].second.equal(task.third.inputs));
          EXPECT_EQ(saved[1].first, "targets");
          EXPECT_TRUE(saved[1].second.equal(task.third.targets));
          throw;
        }
      });
    };
    options_.trainer.terminate_on_nan = true;
    EXPECT_THROW(train(), Error);
    options_.trainer.terminate_on_nan = false;
    EXPECT_NO_THROW(train());
  }
}

}  // namespace
}  // namespace troika::train
