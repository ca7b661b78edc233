#include "troika/train/task.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/train/options.h"

namespace troika::train {

namespace {

// Over all targets; those of a text are [batch, length], which cross_entropy wants flat. In float32
// at least: half types have too few digits for sums of exponentials.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                         at::Reduction::Reduction reduction) {
  const auto type = at::promote_types(logits.scalar_type(), at::kFloat);
  return at::cross_entropy_loss(logits.flatten(0, -2).to(type), targets.flatten(), /*weight=*/{},
                                reduction);
}

}  // namespace

Task::Task(std::shared_ptr<torch::nn::Module> module, Forward forward)
    : module_(std::move(module)), forward_(std::move(forward)) {}

Task::Task(const std::shared_ptr<nn::Model>& model) : module_(model), model_(model) {
  recompute({});
}

const nn::Model& Task::blocks() const {
  if (model_) return *model_;
  throw Error("train", ErrorKind::usage,
              {.what = "activations can be recomputed between the blocks of a model only",
               .got = "trainer.recompute for a task of another module",
               .expected = "a task made of an nn::Model",
               .hint = "nn::from_sequential() makes one"});
}

void Task::recompute(nn::RecomputePlan plan) {
  if (plan.empty()) {
    if (model_)
      forward_ = [model = model_](const at::Tensor& inputs) { return model->forward(inputs); };
    return;
  }
  blocks();
  forward_ = nn::Recompute(model_, std::move(plan));
}

void Task::log_to(MetricLog* log, int64_t batch_size) {
  log_ = log;
  batch_size_ = batch_size;
}

at::Tensor Task::training_step(const data::Batch& batch) {
  const at::Tensor outputs = forward(batch.inputs);
  return loss_ ? loss_(outputs, batch.targets)
               : cross_entropy(outputs, batch.targets, at::Reduction::Mean);
}

void Task::validation_step(const data::Batch& batch, Evaluation& evaluation) {
  const at::Tensor logits = forward(batch.inputs);
  if (loss_) {
    evaluation.loss.update(loss_(logits, batch.targets), static_cast<double>(batch.size()));
    return;
  }
  // Losses of single samples are added up in float64: a rounded mean would depend on how
  // samples were put into batches.
  const at::Tensor losses = cross_entropy(logits, batch.targets, at::Reduction::None);
  evaluation.loss.update(losses, batch.targets.flatten().ne(kIgnored));
  evaluation.accuracy.update(logits, batch.targets);
}

OptimizerRecipe Task::configure_optimizers(const TrainOptions& options) {
  return {.optimizer = options.optimizer, .schedule = options.schedule};
}

void Task::test_step(const data::Batch& batch, Evaluation& evaluation) {
  validation_step(batch, evaluation);
}

at::Tensor Task::predict_step(const data::Batch& batch) {
  return forward(batch.inputs);
}

}  // namespace troika::train
