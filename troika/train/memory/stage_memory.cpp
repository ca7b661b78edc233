#include "troika/train/memory/stage_memory.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/autograd.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/state.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/parallel/pipeline/stage_passes.h"
#include "troika/train/engine/placement.h"
#include "troika/train/engine/stage_trial.h"
#include "troika/train/memory/watch.h"

namespace troika::train {

namespace {

double bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.nbytes()) : 0;
}

// Whether other tensors share the tensor's memory.
bool is_shared(const at::Tensor& tensor) {
  return tensor.defined() && tensor.storage().use_count() > 1;
}

double live() {
  return static_cast<double>(memory::live());
}
double peak() {
  return static_cast<double>(memory::peak());
}

StageMemory measure_stage(StageTrial& trial, Task& task, const parallel::StagesOfModel& stages,
                          int index, bool splits) {
  const auto& stage = stages[index];
  const auto& model = task.blocks();
  StageMemory result;
  {
    task.module().eval();
    const at::NoGradGuard no_grad;
    parallel::StagePasses passes(model, stage);
    auto inputs = trial.inputs(index);
    memory::restart_peak();
    const double before = live();
    trial.validate(passes, index, inputs);
    result.validation = peak() - before;
    task.module().train();
  }
  const auto module =
      parallel::module_of(model, parallel::tensors_of_blocks(model, stage.begin, stage.end));
  auto parameters = nn::trained_parameters(*module);
  std::optional<MemoryWatch> watch;
  std::vector<std::unique_ptr<compat::GradientHook>> hooks;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto& parameter = parameters[i].second;
    parameter.mutable_grad().reset();
    hooks.push_back(std::make_unique<compat::GradientHook>(
        parameter, [&watch, i, &parameter] { watch->take(i, parameter); }));
  }
  const auto inputs = trial.inputs(index);
  for (const auto& input : inputs) result.taken.push_back(bytes_of(input));

  parallel::StagePasses passes(model, stage);
  memory::restart_peak();
  const double before = live();
  auto outputs = trial.forward(passes, index, inputs);
  result.forward_peak = peak() - before;
  result.kept = live() - before;

  const auto gradients = trial.gradients(passes, index, outputs);
  for (const auto& gradient : gradients) result.given_gradients.push_back(bytes_of(gradient));
  trial.keep(index, outputs);
  outputs.clear();

  const nn::KeyedDraws draws(trial.keys());
  // Returns the parts that the watch has seen, beyond the bytes before the forward pass.
  const auto parts_from = [&](double beyond) {
    watch->note({});
    auto parts = std::move(*watch).parts();
    for (auto& part : parts) {
      part.peak += beyond;
      part.live += beyond;
    }
    return parts;
  };
  watch.emplace();
  const auto of_inputs =
      splits ? passes.backward_input(0, gradients) : passes.backward(0, gradients);
  result.backward = parts_from(result.kept);
  for (const auto& gradient : of_inputs) result.gradients.push_back(bytes_of(gradient));
  if (!splits) return result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (stage.takes[i].from == parallel::StageInput::kBatch) continue;
    result.weight_part_takes_inputs |= is_shared(inputs[i]);
  }
  result.weight_part_takes_gradients = std::ranges::any_of(gradients, is_shared);
  std::set<const void*> counted;  // storages
  for (const auto& gradient : passes.weight_part_gradients(0)) {
    if (!counted.insert(gradient.storage().unsafeGetStorageImpl()).second) continue;
    result.weight_gradients += static_cast<double>(gradient.storage().nbytes());
  }
  watch.emplace();
  passes.backward_weight(0);
  result.backward_weight = parts_from(result.backward.back().live);
  return result;
}

double between(double smaller, double larger, double share) {
  return std::lerp(smaller, larger, share);
}

std::vector<double> between(const std::vector<double>& smaller, const std::vector<double>& larger,
                            double share) {
  std::vector<double> result;
  for (size_t i = 0; i < smaller.size(); ++i) {
    result.push_back(between(smaller[i], larger[i], share));
  }
  return result;
}

}  // namespace

std::vector<StageMemory> measure_stages(Task& task, const nn::NumericPrecision& precision,
                                        const parallel::StagesOfModel& stages,
                                        const std::vector<bool>& splits, const data::Batch& batch) {
  TROIKA_CHECK(compat::counts_tensor_memory(), "tensors are not counted");
  StageTrial trial(task, precision, stages, Placement{.precision = precision}.place(batch));
  std::vector<StageMemory> result;
  for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
    result.push_back(measure_stage(trial, task, stages, s, splits[static_cast<size_t>(s)]));
  }
  return result;
}

StageMemory interpolate(const StageMemory& smaller, const StageMemory& larger, double share) {
  StageMemory result{
      .taken = between(smaller.taken, larger.taken, share),
      .gradients = between(smaller.gradients, larger.gradients, share),
      .given_gradients = between(smaller.given_gradients, larger.given_gradients, share),
      .forward_peak = between(smaller.forward_peak, larger.forward_peak, share),
      .kept = between(smaller.kept, larger.kept, share),
      .backward = interpolate(smaller.backward, larger.backward, share),
      .backward_weight = interpolate(smaller.backward_weight, larger.backward_weight, share),
      .weight_part_takes_inputs = larger.weight_part_takes_inputs,
      .weight_part_takes_gradients = larger.weight_part_takes_gradients,
      .weight_gradients = between(smaller.weight_gradients, larger.weight_gradients, share),
      .validation = between(smaller.validation, larger.validation, share)};
  return result;
}

}  // namespace troika::train
