// A run that is stopped and resumed from its checkpoint equals, to the bit, the run that never
// stopped.
#include "troika/checkpoint/resume.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/checkpoint/damaged_checkpoint.h"
#include "tests/support/errors.h"
#include "tests/train/resumed_run.h"
#include "troika/train/run/course_names.h"

namespace troika::train {
namespace {

class Resume : public ResumedRun {
 protected:
  Resume() {
    options_.trainer.max_epochs = 4;
    options_.comm.bucket_megabytes = 1e-4;
  }

  static MakeQuestion after_micro_batches(int64_t count) {
    return [count](const CountingTask&, int) -> StopQuestion {
      // All ranks count passes in the same way, so that the pass is known.
      return [micro_batches = int64_t{0}, count]() mutable {
        return ++micro_batches >= count ? cluster::StopRequest::save_and_stop
                                        : cluster::StopRequest::none;
      };
    };
  }

  static at::Tensor links_of(const checkpoint::RankState& state) {
    return std::ranges::find(state.rest, kLinks, &checkpoint::NamedTensors::value_type::first)
        ->second;
  }

  // Stops after each of these numbers of passes.
  void expect_exact(int ranks, const std::vector<int64_t>& stops = {4, 6, 8}) {
    const auto whole = fit(options_, ranks);
    for (const int64_t stop : stops) {
      ResumedRun::expect_exact(whole, fmt::format("{}-ranks-stopped-{}", ranks, stop),
                               after_micro_batches(stop));
    }
  }

  // Resumes on two ranks from a state in the middle of an epoch and of its logged rows.
  void expect_exact_from_step_17() {
    const auto whole = fit(options_, 2);
    auto options = options_;
    options.run.folder = (folder_ / "part").string();
    options.checkpoint = {.every_n_epochs = 0, .every_n_train_steps = 17, .save_last = "false"};
    fit(options, 2);
    options.trainer.ckpt_path = "last";
    options.checkpoint = {};
    const auto resumed = fit(options, 2);
    for (size_t r = 0; r < whole.size(); ++r) {
      expect_same(whole[r].model, resumed[r].model);
      expect_same(whole[r].rest, resumed[r].rest, false);
    }
    EXPECT_EQ(logged(options_), logged(options)) << "rows of after the checkpoint went";
  }

  // Expects equality up to rounding.
  static void expect_close(const checkpoint::RankState& whole,
                           const checkpoint::RankState& resumed) {
    ASSERT_EQ(whole.model.size(), resumed.model.size());
    for (size_t i = 0; i < whole.model.size(); ++i) {
      EXPECT_TRUE(whole.model[i].second.allclose(resumed.model[i].second, 1e-9, 1e-9))
          << whole.model[i].first;
    }
  }
};

// Threads share one generator, so dropout is for one rank here; processes are in tests/cli.
TEST_F(Resume, IsExactWithDropoutAndBatchNorm) {
  dropout_ = 0.3;
  expect_exact(1);
}

TEST_F(Resume, IsExactOnTwoRanks) {
  // Ranks agree after the first pass, and then rarely.
  expect_exact(2, {1});
}

TEST_F(Resume, IsExactInsideAnAccumulation) {
  options_.trainer.accumulate_grad_batches = 4;
  expect_exact(1, {1, 3, 4, 5, 6, 8});
  expect_exact(2, {1});
}

TEST_F(Resume, IsExactWithAPlateau) {
  options_.schedule.name = "plateau";
  options_.schedule.patience = 0;
  options_.schedule.threshold = 0.9;
  options_.optimizer.name = "sgd";
  expect_exact(1, {8, 14});
  expect_exact(2, {1});
}

TEST_F(Resume, IsExactBetweenAveragesOfPostLocalSgd) {
  options_.trainer.strategy = "post_local_sgd";
  options_.local_sgd.warmup_steps = 0;
  options_.local_sgd.period = 4;
  expect_exact(2, {1});
}

TEST_F(Resume, IsExactInTheWarmUpOfPostLocalSgd) {
  options_.trainer.strategy = "post_local_sgd";
  options_.local_sgd.warmup_steps = 3;
  expect_exact(2, {1});
}

TEST_F(Resume, IsExactAfterTheWarmUpOfPostLocalSgd) {
  options_.trainer.strategy = "post_local_sgd";
  options_.local_sgd.warmup_steps = 3;
  options_.local_sgd.period = 4;
  expect_exact_from_step_17();
}

TEST_F(Resume, IsExactWithPowerSgd) {
  options_.ddp.codec.name = "powersgd";
  options_.ddp.codec.start_step = 2;
  expect_exact_from_step_17();
}

TEST_F(Resume, IsExactWithSharedOutStates) {
  options_.trainer.strategy = "zero2";
  expect_exact_from_step_17();
}

// Wide enough for parameters that are released between passes.
TEST_F(Resume, IsExactWithSharedOutParameters) {
  options_.trainer.strategy = "zero3";
  width_ = 2600;
  expect_exact_from_step_17();
}

TEST_F(Resume, IsExactWithMastersAndALossScale) {
  options_.trainer.precision = "bf16-true";
  expect_exact(1, {4});
}

TEST_F(Resume, IsExactWithCallbacks) {
  options_.trainer.log_every_n_steps = 5;
  options_.checkpoint.monitor = "mean_epoch";
  options_.checkpoint.save_top_k = 2;
  options_.checkpoint.every_n_train_steps = 4;
  options_.early_stopping.monitor = "train/epoch_loss";
  options_.early_stopping.patience = 2;
  options_.early_stopping.min_delta = 0.5;
  expect_exact(1);
  expect_exact(2, {1});
}

// At the end there is one checkpoint, also for a run that was stopped after its last pass.
TEST_F(Resume, IsExactWithoutCheckpointsOfEpochs) {
  options_.checkpoint.every_n_epochs = 0;
  expect_exact(1, {8, 24});
  EXPECT_EQ(checkpoint::find_checkpoint(folder_ / "whole/run/checkpoints", "last").filename(),
            "epoch=4-step=24");
}

TEST_F(Resume, IsExactWithAverages) {
  options_.ema.enabled = true;
  options_.swa = {.swa_lrs = 0.01, .swa_epoch_start = "0", .annealing_epochs = 3};
  expect_exact(1);
  expect_exact(2, {1});
  options_.trainer.strategy = "zero2";
  options_.run.folder = (folder_ / "shared-out").string();
  expect_exact_from_step_17();
}

TEST_F(Resume, AlgorithmsAreChosenByTheLinksOfTheFirstStart) {
  options_.trainer.ckpt_path = "last";
  const auto first = links_of(fit(options_, 2, after_micro_batches(1))[1]).clone();
  EXPECT_TRUE(links_of(fit(options_, 2)[1]).equal(first));
}

TEST_F(Resume, AFinishedRunGoesOnWithMoreEpochs) {
  options_.schedule.name = "constant";
  auto options = options_;
  options.trainer.max_epochs = 2;
  options.trainer.ckpt_path = "last";
  options.run.folder = (folder_ / "more").string();
  fit(options, 1);
  options.trainer.max_epochs = 4;
  const auto resumed = fit(options, 1);
  expect_same(fit(options_, 1)[0].model, resumed[0].model);
}

TEST_F(Resume, IsExactFromWhatWasWrittenBesideTraining) {
  options_.checkpoint.async = "true";
  options_.checkpoint.every_n_train_steps = 1;
  expect_exact(1, {8});
  options_.run.folder = (folder_ / "on two").string();
  expect_exact(2, {1});
  options_.trainer.strategy = "zero3";
  width_ = 2600;
  options_.data.global_batch_size = 6;
  options_.run.folder = (folder_ / "shared-out").string();
  expect_exact(3, {1});
}

// Up to rounding: batch norm aside, the number of ranks does not change the course.
TEST_F(Resume, AnyNumberOfRanksGoesOn) {
  options_.trainer.accumulate_grad_batches = 3;
  options_.trainer.sync_batchnorm = true;
  options_.trainer.precision = "64";
  const auto whole = fit(options_, 1);
  for (const auto& [before, after] : {std::pair{2, 1}, {1, 2}, {2, 4}}) {
    SCOPED_TRACE(after);
    auto options = options_;
    options.trainer.ckpt_path = "last";
    options.run.folder = (folder_ / std::to_string(before * 10 + after)).string();
    fit(options, before, after_micro_batches(1));
    const auto resumed = fit(options, after);
    expect_close(whole[0], resumed[0]);
  }
}

TEST_F(Resume, SharesBecomeReplicasAndReplicasShares) {
  options_.trainer.accumulate_grad_batches = 3;
  options_.trainer.sync_batchnorm = true;
  options_.trainer.precision = "64";
  options_.data.global_batch_size = 6;  // 2 steps an epoch
  const auto whole = fit(options_, 1);
  struct Change {
    std::string before;
    int ranks_before;
    std::string after;
    int ranks_after;
  };
  for (const auto& [before, ranks_before, after, ranks_after] :
       {Change{"zero2", 2, "ddp", 3}, {"ddp", 3, "zero2", 2}, {"zero1", 3, "zero3", 2}}) {
    // In the middle of an accumulation, before any step; and in the middle of an epoch.
    for (const bool stops : {true, false}) {
      SCOPED_TRACE(before + (stops ? " stopped, then " : " saved, then ") + after);
      auto options = options_;
      options.trainer.strategy = before;
      options.run.folder = (folder_ / (before + (stops ? "stopped" : "saved"))).string();
      if (!stops) {
        options.checkpoint = {.every_n_epochs = 0, .every_n_train_steps = 5, .save_last = "false"};
      }
      fit(options, ranks_before, stops ? after_micro_batches(1) : nullptr);
      options.trainer.strategy = after;
      options.trainer.ckpt_path = "last";
      options.checkpoint = {};
      expect_close(whole[0], fit(options, ranks_after)[0]);
    }
  }
}

TEST_F(Resume, RefusesAnotherFormatWhoseWeightsCanBeUsed) {
  options_.trainer.sync_batchnorm = true;  // a pass has one sample a rank
  options_.trainer.ckpt_path = "last";
  const auto whole = fit(options_, 4);
  const auto last = checkpoint::find_checkpoint(folder_ / "whole/run/checkpoints", "last");
  checkpoint::make_format_three(last);
  options_.trainer.max_epochs = 5;
  EXPECT_ERROR(
      fit(options_, 4), ErrorKind::usage,
      "[train] cannot resume from " + last.string() +
          "; got a checkpoint of format 3, expected format 4 or 5 (model.weights starts a new "
          "run from its weights)");
  expect_same(checkpoint::load_weights(last), whole[0].model);
  options_.trainer.ckpt_path = "";
  options_.weights.path = last.string();
  fit(options_, 4);
}

TEST_F(Resume, GoesOnFromFormatFour) {
  options_.trainer.ckpt_path = "last";
  options_.trainer.strategy = "zero2";
  const auto whole = fit(options_, 2);
  auto options = options_;
  options.run.folder = (folder_ / "stopped").string();
  fit(options, 2, after_micro_batches(1));
  checkpoint::make_format_four(
      checkpoint::find_checkpoint(folder_ / "stopped/run/checkpoints", "last"));
  const auto resumed = fit(options, 2);
  for (size_t r = 0; r < whole.size(); ++r) {
    expect_same(whole[r].model, resumed[r].model);
    expect_same(whole[r].rest, resumed[r].rest, /*random=*/false);
  }
}

// Saved links belong to ranks at their places; ranks at other places have other links.
TEST_F(Resume, APlanDecidesWhetherRanksAreInTheSamePlaces) {
  options_.trainer.ckpt_path = "last";
  fit(options_, 2, after_micro_batches(1));
  const auto last = checkpoint::find_checkpoint(folder_ / "whole/run/checkpoints", "last");
  const auto first = checkpoint::CheckpointReader(last, 0).read(kLinks);
  const auto copy = folder_ / "copy";
  std::filesystem::copy(last, copy);
  links_ = first[0] * 2;  // of the world
  EXPECT_TRUE(links_of(fit(options_, 2)[1]).equal(first));
  checkpoint::change_index(copy, [](auto& index) {
    index["plan"] = layout::Plan{.mesh = layout::Mesh::parse("tensor=2")}.text();
  });
  options_.trainer.ckpt_path = copy.string();
  EXPECT_TRUE(links_of(fit(options_, 2)[1])[0].equal(links_));
}

// Older checkpoints have them as "links", in another unit.
TEST_F(Resume, WithoutSavedLinksTheyAreMeasuredAnew) {
  options_.trainer.ckpt_path = "last";
  fit(options_, 2, after_micro_batches(1));
  const auto last = checkpoint::find_checkpoint(folder_ / "whole/run/checkpoints", "last");
  links_ = checkpoint::CheckpointReader(last, 0).read(kLinks)[0] * 2;  // of the world
  checkpoint::change_index(last, [](auto& index) {
    auto& tensors = index["tensors"];
    tensors["links"] = tensors.at(kLinks);
    tensors.erase(kLinks);
  });
  EXPECT_TRUE(links_of(fit(options_, 2)[1])[0].equal(links_));
}

TEST_F(Resume, RefusesAnotherSeed) {
  options_.trainer.ckpt_path = "last";
  fit(options_, 1);
  options_.run.seed = 1;
  const auto last = checkpoint::find_checkpoint(folder_ / "whole/run/checkpoints", "last");
  EXPECT_ERROR(
      fit(options_, 1), ErrorKind::usage,
      "[train] cannot resume from " + last.string() + " with another run.seed; got 1, expected 42");
}

}  // namespace
}  // namespace troika::train
