// A run that is asked to stop during a validation saves and ends; resumed, it continues from there
// to the bit.
#include <fmt/format.h>

#include "tests/train/resumed_run.h"
#include "troika/data/sampler.h"

namespace troika::train {
namespace {

constexpr int kStoppedRanks = 4;

class ValidationStop : public ResumedRun {
 protected:
  ValidationStop() {
    options_.trainer.max_epochs = 2;
    options_.trainer.val_check_interval = "2";
    options_.trainer.sync_batchnorm = true;  // a pass has one sample a rank
    options_.trainer.num_sanity_val_steps = 0;
    links_ = at::tensor({1e-6, 1e-10, 1e-6, 1e-9, 1e-10}, at::kDouble);
  }

  // Asks to stop on one rank, from its validation step `at` on. All ranks agree on the answer in
  // the first step of a validation.
  static MakeQuestion in_step(int64_t at, int victim) {
    return [=](const CountingTask& task, int rank) -> StopQuestion {
      return [=, &task] {
        return rank == victim && task.validation_steps >= at ? cluster::StopRequest::save_and_stop
                                                             : cluster::StopRequest::none;
      };
    };
  }

  void expect_exact_from_validations() {
    const auto whole = fit(options_, kStoppedRanks);
    for (const int victim : {0, kStoppedRanks - 1}) {
      const auto own = static_cast<int64_t>(
          data::evaluation_batches(Waves().size(), 1, {victim, kStoppedRanks}).size());
      // The first validation, the one at the end of the first epoch, and the last.
      for (const int64_t validations_before : {0, 2, 5}) {
        expect_exact(whole, fmt::format("rank-{}-validation-{}", victim, validations_before),
                     in_step(own * validations_before + 1, victim));
      }
    }
  }
};

TEST_F(ValidationStop, IsExactWithWeightAverages) {
  options_.ema.enabled = true;
  options_.ema.decay = 0.5;
  expect_exact_from_validations();
}

// Two steps after an outer step, so that replicas differ.
TEST_F(ValidationStop, IsExactBetweenOuterStepsOfDiLoCo) {
  options_.trainer.strategy = "diloco";
  options_.diloco.inner_steps = 4;
  expect_exact_from_validations();
}

// Some ranks have one more validation batch than others.
TEST_F(ValidationStop, IsExactWhereRanksShareParameters) {
  options_.trainer.strategy = "zero3";
  width_ = 3400;  // a block of more than 10000 parameters, which is sharded
  expect_exact_from_validations();
}

// The first validation, inside of the first epoch.
TEST_F(ValidationStop, IsExactWhereTheValidationEndsTheRun) {
  options_.early_stopping.monitor = "validation/loss";
  options_.early_stopping.stopping_threshold = 1e9;
  options_.checkpoint.save_on_train_epoch_end = "true";  // the end of the run, not the validation
  const auto whole = fit(options_, kStoppedRanks);
  for (const int victim : {0, kStoppedRanks - 1}) {
    const auto name = fmt::format("rank-{}", victim);
    expect_exact(whole, name, in_step(1, victim));
    const checkpoint::CheckpointReader last(
        checkpoint::find_checkpoint(folder_ / name / "run/checkpoints", "last"), victim);
    EXPECT_EQ(last.read("loops.step").item<int64_t>(), 2);
    EXPECT_EQ(last.read("loops.ended_step").item<int64_t>(), 2);
    EXPECT_EQ(last.read("loops.epoch").item<int64_t>(), 0);
  }
}

TEST_F(ValidationStop, IsExactInTheSanityValidation) {
  options_.ema.enabled = true;
  options_.trainer.num_sanity_val_steps = 2;
  const auto whole = fit(options_, kStoppedRanks);
  for (const int victim : {0, kStoppedRanks - 1}) {
    expect_exact(whole, fmt::format("rank-{}", victim), in_step(1, victim));
  }
}

}  // namespace
}  // namespace troika::train
