#include "troika/train/task/task.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/deferred_init.h"
#include "troika/compat/error_text.h"
#include "troika/compat/torch.h"
#include "troika/train/options/options.h"
#include "troika/train/task/step_error.h"

namespace troika::train {

namespace {

// Returns the result of `loss`; turns an error of LibTorch into a LossError.
template <typename Loss>
at::Tensor with_loss_errors(const Outputs& outputs, const Loss& loss) {
  try {
    return loss(outputs);
  } catch (const std::exception& problem) {
    if (!compat::is_torch_error(problem)) throw;
    std::throw_with_nested(LossError(problem, outputs));
  }
}

}  // namespace

Task::Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward)
    : module_(std::move(module)), forward_(std::move(forward)) {}

Task::Task(std::shared_ptr<torch::nn::Module> module, Forward forward)
    : Task(std::move(module), of_inputs(std::move(forward))) {}

Task::Task(const std::shared_ptr<nn::Model>& model) : module_(model), model_(model) {}

Task::BatchForward Task::of_inputs(Forward forward) {
  return
      [forward = std::move(forward)](const data::Batch& batch) { return forward(batch["inputs"]); };
}

Task::BatchLoss Task::of_targets(Loss loss) {
  return [loss = std::move(loss)](const at::Tensor& outputs, const data::Batch& batch) {
    return loss(outputs, batch["targets"]);
  };
}

Task::OutputsLoss Task::of_only(BatchLoss loss) {
  return [loss = std::move(loss)](const Outputs& outputs, const data::Batch& batch) {
    return loss(outputs.only(), batch);
  };
}

const nn::Model& Task::blocks() const {
  if (model_) return *model_;
  throw Error("train", ErrorKind::usage,
              {.what = "activations can be recomputed between the blocks of a model only",
               .got = "trainer.recompute for a task of another module",
               .expected = "a task made of an nn::Model",
               .hint = "nn::from_sequential() makes one"});
}

nn::Tensors Task::block_inputs(const data::Batch& batch) const {
  const auto& names = blocks().input_names();
  nn::Tensors inputs;
  inputs.reserve(names.size());
  for (const std::string_view name : names) {
    inputs.push_back(batch[name == nn::kPassing ? "inputs" : name]);
  }
  return inputs;
}

std::shared_ptr<const nn::OutputLoss> Task::output_loss(const data::Batch& batch,
                                                        nn::OutputLoss::Kind kind) const {
  if (!model_ || !model_->has_output_layer() || has_own_loss()) return nullptr;
  return std::make_shared<nn::OutputLoss>(nn::OutputLoss{
      .targets = batch["targets"], .ignored = metrics::kIgnored, .kind = kind, .terms = terms()});
}

nn::LossTerms Task::terms() const {
  return at::GradMode::is_enabled() ? loss_terms_ : nn::LossTerms{};
}

void Task::use_loss_terms(const nn::LossTerms& terms) {
  const auto own = own_steps();
  const bool has_own_step = std::ranges::find(own, "training_step") != own.end();
  if (!terms.is_plain() && (has_own_loss() || has_own_step)) {
    throw Error("train", ErrorKind::usage,
                {.what = "label smoothing and z-loss are terms of the cross entropy",
                 .got = "trainer.label_smoothing or trainer.z_loss, and a task with its own loss "
                        "or training_step",
                 .expected = "neither, or a task without them",
                 .hint = "such a task can add nn::LossTerms to its own cross entropy"});
  }
  loss_terms_ = terms;
}

void Task::recompute(layout::RecomputePlan plan) {
  recomputing_->reset();
  if (plan.empty()) return;
  blocks();
  *recomputing_ = nn::recompute(*model_, std::move(plan));
}

Outputs Task::named(nn::Tensors tensors) const {
  if (model_->blocks().empty()) return Outputs(nn::only(std::move(tensors)));
  return {model_->blocks().back().gives, std::move(tensors)};
}

Outputs Task::outputs(const data::Batch& batch) const {
  if (!model_) return Outputs(forward_(batch));
  return named(model_->forward(block_inputs(batch)));
}

void Task::make_values() {
  // Recorded tensors that the module does not use are dropped.
  if (const auto values = take_values()) {
    values->materialize([](compat::DeferredInit::Key, const at::Tensor&) { return false; });
  }
}

void Task::log_to(observe::MetricLog* log, int64_t batch_size) {
  log_ = log;
  batch_size_ = batch_size;
}

at::Tensor Task::loss(const Outputs& outputs, const data::Batch& batch) {
  if (loss_) return loss_(outputs, batch);
  return nn::cross_entropy(
      outputs.only(),
      {.targets = batch["targets"], .ignored = metrics::kIgnored, .terms = terms()});
}

at::Tensor Task::training_step(const data::Batch& batch) {
  if (auto asked = output_loss(batch)) {
    return nn::only(model_->forward(block_inputs(batch), std::move(asked)));
  }
  return with_loss_errors(outputs(batch), [&](const Outputs& given) { return loss(given, batch); });
}

at::Tensor Task::finish_training(nn::Tensors given, bool is_loss, const data::Batch& batch) {
  if (is_loss) return nn::only(std::move(given));
  return with_loss_errors(named(std::move(given)),
                          [&](const Outputs& outputs) { return loss(outputs, batch); });
}

void Task::validation_step(const data::Batch& batch, Evaluation& evaluation) {
  if (auto asked = output_loss(batch, nn::OutputLoss::Kind::each)) {
    return judge_losses(model_->forward(block_inputs(batch), std::move(asked)), batch, evaluation);
  }
  judge(outputs(batch), batch, evaluation);
}

void Task::finish_evaluation(nn::Tensors given, bool is_loss, const data::Batch& batch,
                             Evaluation& evaluation) {
  is_loss ? judge_losses(given, batch, evaluation)
          : judge(named(std::move(given)), batch, evaluation);
}

void Task::judge_losses(const nn::Tensors& rows, const data::Batch& batch, Evaluation& evaluation) {
  const auto targets = batch["targets"].flatten();
  evaluation.loss.update(rows[0], targets.ne(metrics::kIgnored));
  evaluation.accuracy.update(rows[1], targets);
}

void Task::judge(const Outputs& given, const data::Batch& batch, Evaluation& evaluation) {
  if (has_own_loss()) {
    const auto mean =
        with_loss_errors(given, [&](const Outputs& outputs) { return loss(outputs, batch); });
    evaluation.loss.update(mean, static_cast<double>(batch.size()));
    return;
  }
  // Losses of single samples are summed in float64: a rounded mean would depend on how samples were
  // grouped into batches.
  const auto losses = with_loss_errors(given, [&](const Outputs& outputs) {
    return nn::cross_entropy(outputs.only(), {.targets = batch["targets"],
                                              .ignored = metrics::kIgnored,
                                              .kind = nn::OutputLoss::Kind::each});
  });
  evaluation.loss.update(losses, batch["targets"].flatten().ne(metrics::kIgnored));
  evaluation.accuracy.update(given.only(), batch["targets"]);
}

OptimizerRecipe Task::configure_optimizers(const TrainOptions& options) {
  return {.optimizer = options.optimizer, .schedule = options.schedule};
}

parallel::SplitTable Task::split_table() const {
  return model_ && model_->options() ? parallel::split_table(*model_->options())
                                     : parallel::SplitTable();
}

void Task::test_step(const data::Batch& batch, Evaluation& evaluation) {
  validation_step(batch, evaluation);
}

at::Tensor Task::predict_step(const data::Batch& batch) {
  return forward(batch);
}

}  // namespace troika::train
