#include "troika/train/engine/stage_trial.h"

#include <algorithm>

#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/task/task.h"

namespace troika::train {

using parallel::StageInput;

StageTrial::StageTrial(Task& task, const nn::NumericPrecision& precision,
                       const parallel::StagesOfModel& stages, data::Batch batch)
    : task_(task),
      precision_(precision),
      model_(task.blocks()),
      stages_(stages),
      batch_(std::move(batch)),
      keys_(std::make_shared<nn::SampleKeys>(nn::some_samples(batch_.size()))),
      norms_(task.module(), comm::local::alone()) {}

nn::Tensors StageTrial::inputs(int stage) const {
  const auto of_batch = task_.block_inputs(batch_);
  const auto& wiring = model_.wiring();
  const auto& names = wiring.input_names();
  nn::Tensors result;
  for (const auto& input : stages_[stage].takes) {
    if (input.from == StageInput::kBatch) {
      const auto name = wiring.names({input.slot}).front();
      result.push_back(
          of_batch.at(static_cast<size_t>(std::ranges::find(names, name) - names.begin())));
    } else {
      result.push_back(given_.at({input.from, input.slot}).clone());
    }
  }
  return result;
}

bool StageTrial::computes_loss(int stage) const {
  return is_last(stage) && stages_[stage].has_blocks() && model_.has_output_layer();
}

nn::Tensors StageTrial::forward(parallel::StagePasses& passes, int stage, nn::Tensors inputs) {
  const parallel::DeferredBatchNorm::Counting counting(norms_);
  const nn::KeyedDraws draws(keys_);
  const nn::Autocast autocast(precision_, task_.module().parameters().front().device().type());
  auto loss = computes_loss(stage) ? task_.output_loss(batch_) : nullptr;
  const bool is_loss = loss != nullptr;
  auto outputs = passes.forward(0, std::move(inputs), std::move(loss), is_last(stage));
  if (!is_last(stage)) return outputs;
  // The engine's root is a product, too: the loss times the weight of the micro-batch.
  passes.start_from(0, task_.finish_training(std::move(outputs), is_loss, batch_) * 0.5);
  return {};
}

void StageTrial::validate(parallel::StagePasses& passes, int stage, nn::Tensors inputs) {
  const nn::Autocast autocast(precision_, task_.module().parameters().front().device().type());
  auto loss =
      computes_loss(stage) ? task_.output_loss(batch_, nn::OutputLoss::Kind::each) : nullptr;
  const bool is_loss = loss != nullptr;
  auto outputs = passes.forward(0, std::move(inputs), std::move(loss), is_last(stage));
  if (!is_last(stage)) return;
  Evaluation evaluation;
  task_.finish_evaluation(std::move(outputs), is_loss, batch_, evaluation);
}

nn::Tensors StageTrial::gradients(const parallel::StagePasses& passes, int stage,
                                  const nn::Tensors& outputs) const {
  if (is_last(stage)) return {};
  const auto differentiable = passes.differentiable_outputs(0);
  nn::Tensors result(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!differentiable[i]) continue;
    const auto slot = stages_[stage].gives[i];
    for (int to = stage + 1; to < static_cast<int>(stages_.size()); ++to) {
      const bool is_sent = std::ranges::any_of(
          stages_.message(stage, to),
          [&](const StageInput& input) { return input.slot == slot && input.is_trained; });
      if (is_sent && !result[i].defined()) result[i] = at::ones_like(outputs[i]);
    }
  }
  return result;
}

void StageTrial::keep(int stage, const nn::Tensors& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    given_[{stage, stages_[stage].gives[i]}] = outputs[i].clone();
  }
}

}  // namespace troika::train
