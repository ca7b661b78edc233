#include "troika/train/engine/learning_rate.h"

#include "troika/base/error.h"
#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

constexpr const char* kPlateau = "plateau";

optim::Schedule make_schedule(const OptimizerRecipe& recipe, const layout::Plan& plan,
                              int64_t steps, int64_t global_batch) {
  if (recipe.factor) return recipe.factor;
  const auto& name = recipe.schedule.name;
  if (steps == 0 && (name == "cosine" || name == "polynomial" || name == "one_cycle")) {
    throw Error("train", ErrorKind::usage,
                {.what = "a run that only trainer.max_time ends has no number of steps",
                 .got = "optim.schedule " + name + ", which needs one",
                 .expected = "constant, step, multi_step or plateau, or trainer.max_steps"});
  }
  // A sum over micro-batches is already larger by their number.
  const int64_t averaged = plan.sums_micro_batches ? 1 : plan.micro_batches;
  return optim::make_schedule(recipe.schedule,
                              {.steps = steps, .global_batch = global_batch * averaged});
}

}  // namespace

LearningRate::LearningRate(const OptimizerRecipe& recipe, const layout::Plan& plan, int64_t steps,
                           int64_t global_batch)
    : lr_(recipe.optimizer.lr), schedule_(make_schedule(recipe, plan, steps, global_batch)) {
  if (recipe.schedule.name == "plateau" && !recipe.factor) plateau_.emplace(recipe.schedule);
}

void LearningRate::judge(std::optional<double> validation_loss) {
  if (!plateau_) return;
  if (!validation_loss) {
    throw Error("train", ErrorKind::usage,
                {.what = "optim.schedule=plateau follows validation/loss",
                 .got = "a validation whose steps gave none",
                 .expected = "a task that adds its loss to the Evaluation, or another schedule"});
  }
  plateau_->judge(*validation_loss);
}

void LearningRate::add_state(checkpoint::NamedTensors& state) const {
  if (plateau_) state.emplace_back(kPlateau, plateau_->state());
}

void LearningRate::load(const checkpoint::CheckpointReader& saved) {
  if (plateau_ && saved.has(kPlateau)) plateau_->load_state(saved.read(kPlateau));
}

}  // namespace troika::train
