// The learning rate of each optimizer step of a run.
#pragma once

#include <cstdint>
#include <optional>

#include "troika/checkpoint/checkpoint.h"
#include "troika/layout/plan.h"
#include "troika/optim/plateau.h"
#include "troika/optim/schedule.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::checkpoint {
class CheckpointReader;
}

namespace troika::train {

// The recipe's rate multiplied by its schedule, which may follow the validation loss.
class LearningRate {
 public:
  // `steps` is the number of optimizer steps of the whole run, 0 if a time limit ends it.
  // `global_batch` is the number of samples of a micro-batch over all ranks. Throws Error(usage) if
  // `steps` is 0 and the schedule needs a number of steps.
  LearningRate(const OptimizerRecipe& recipe, const layout::Plan& plan, int64_t steps,
               int64_t global_batch);

  // Returns the rate of a step. `step` counts from 0, without skipped steps.
  double operator()(int64_t step) const {
    return lr_ * schedule_(step) * (plateau_ ? plateau_->factor() : 1.0);
  }
  // Must be called once after each validation. Throws Error(usage) if there is no loss and the
  // schedule needs it.
  void judge(std::optional<double> validation_loss);

  void add_state(checkpoint::NamedTensors& state) const;
  void load(const checkpoint::CheckpointReader& saved);

 private:
  const double lr_;
  const optim::Schedule schedule_;
  std::optional<optim::ReduceOnPlateau> plateau_;
};

}  // namespace troika::train
