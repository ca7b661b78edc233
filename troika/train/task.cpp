#include "troika/train/task.h"

#include "troika/base/error.h"
#include "troika/compat/error_text.h"
#include "troika/compat/torch.h"
#include "troika/train/options.h"
#include "troika/train/step_error.h"

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

// Returns what `loss` returns of the outputs.
template <typename Loss>
auto loss_of(const at::Tensor& outputs, const Loss& loss) {
  try {
    return loss(outputs);
  } catch (const std::exception& problem) {
    if (!compat::is_torch_error(problem)) throw;
    std::throw_with_nested(LossError(problem, outputs));
  }
}

nn::Tensors inputs_of(const nn::Model& model, const data::Batch& batch) {
  nn::Tensors inputs;
  for (const auto& name : model.input_names()) {
    inputs.push_back(batch[name == nn::kPassing ? "inputs" : name]);
  }
  return inputs;
}

}  // namespace

Task::Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward)
    : module_(std::move(module)), forward_(std::move(forward)) {}

Task::Task(std::shared_ptr<torch::nn::Module> module, Forward forward)
    : Task(std::move(module), of_inputs(std::move(forward))) {}

Task::Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward, BatchLoss loss)
    : module_(std::move(module)), forward_(std::move(forward)), loss_(std::move(loss)) {}

Task::Task(const std::shared_ptr<nn::Model>& model)
    : module_(model), model_(model), forward_([model](const data::Batch& batch) {
        return nn::only(model->forward(inputs_of(*model, batch)));
      }) {}

Task::BatchForward Task::of_inputs(Forward forward) {
  return
      [forward = std::move(forward)](const data::Batch& batch) { return forward(batch["inputs"]); };
}

Task::BatchLoss Task::of_targets(Loss loss) {
  return [loss = std::move(loss)](const at::Tensor& outputs, const data::Batch& batch) {
    return loss(outputs, batch["targets"]);
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
  return inputs_of(blocks(), batch);
}

std::shared_ptr<nn::LossRequest> Task::loss_request(const data::Batch& batch,
                                                    nn::LossRequest::Kind kind) const {
  if (loss_ || !model_) return nullptr;
  return std::make_shared<nn::LossRequest>(nn::LossRequest{
      .model = model_.get(), .targets = batch["targets"], .ignored = kIgnored, .kind = kind});
}

void Task::recompute(layout::RecomputePlan plan) {
  recomputing_->reset();
  if (plan.empty()) return;
  blocks();
  *recomputing_ = nn::recompute(*model_, std::move(plan));
}

void Task::make_values() {
  // What no tensor of the module shares has no use.
  if (const auto values = take_values()) {
    values->materialize([](compat::DeferredInit::Key, const at::Tensor&) { return false; });
  }
}

void Task::log_to(MetricLog* log, int64_t batch_size) {
  log_ = log;
  batch_size_ = batch_size;
}

at::Tensor Task::forward_with(std::shared_ptr<nn::LossRequest> request,
                              const data::Batch& batch) const {
  const nn::LossStateGuard asked({.request = std::move(request)});
  return forward(batch);
}

at::Tensor Task::training_step(const data::Batch& batch) {
  const auto request = loss_request(batch);
  const at::Tensor outputs = forward_with(request, batch);
  if (request && request->is_answered) return outputs;
  return loss_of(outputs, [&](const at::Tensor& of) {
    return loss_ ? loss_(of, batch) : cross_entropy(of, batch["targets"], at::Reduction::Mean);
  });
}

void Task::validation_step(const data::Batch& batch, Evaluation& evaluation) {
  const auto request = loss_request(batch, nn::LossRequest::Kind::each);
  const at::Tensor outputs = forward_with(request, batch);
  if (loss_) {
    const auto loss = loss_of(outputs, [&](const at::Tensor& of) { return loss_(of, batch); });
    evaluation.loss.update(loss, static_cast<double>(batch.size()));
    return;
  }
  const at::Tensor& targets = batch["targets"];
  // Losses of single samples are added up in float64: a rounded mean would depend on how
  // samples were put into batches.
  const bool is_answered = request && request->is_answered;
  const at::Tensor losses = is_answered ? outputs : loss_of(outputs, [&](const at::Tensor& logits) {
    return cross_entropy(logits, targets, at::Reduction::None);
  });
  evaluation.loss.update(losses, targets.flatten().ne(kIgnored));
  if (is_answered) {
    evaluation.accuracy.update(request->predictions, targets.flatten());
  } else {
    evaluation.accuracy.update(outputs, targets);
  }
}

OptimizerRecipe Task::configure_optimizers(const TrainOptions& options) {
  return {.optimizer = options.optimizer, .schedule = options.schedule};
}

void Task::test_step(const data::Batch& batch, Evaluation& evaluation) {
  validation_step(batch, evaluation);
}

at::Tensor Task::predict_step(const data::Batch& batch) {
  return forward(batch);
}

}  // namespace troika::train
