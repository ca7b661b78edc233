#include "troika/train/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/budget.h"
#include "troika/nn/state.h"
#include "troika/train/checkpoint.h"

namespace troika::train {

namespace {

constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kExchange = "exchange.";
constexpr std::string_view kGradient = "gradient.";
constexpr const char* kPlateau = "plateau";
constexpr const char* kMemoryFormat = "memory_format";

void append(optim::NamedTensors& list, std::string_view prefix, const optim::NamedTensors& more) {
  for (const auto& [name, tensor] : more) list.emplace_back(std::string(prefix) + name, tensor);
}

optim::Schedule make_schedule(const OptimizerRecipe& recipe, const Accumulation& accumulated,
                              int64_t steps, int64_t global_batch) {
  if (recipe.factor) return recipe.factor;
  const auto& name = recipe.schedule.name;
  if (steps == 0 && (name == "cosine" || name == "polynomial" || name == "one_cycle")) {
    throw Error("train", ErrorKind::usage,
                {.what = "a run that only trainer.max_time ends has no number of steps",
                 .got = "optim.schedule " + name + ", which needs one",
                 .expected = "constant, step, multi_step or plateau, or trainer.max_steps"});
  }
  // A sum of passes already is larger by their number.
  const bool is_mean = accumulated.factor < 1;
  return optim::make_schedule(
      recipe.schedule,
      {.steps = steps, .global_batch = is_mean ? global_batch * accumulated.passes : global_batch});
}

}  // namespace

TrainingStep::TrainingStep(const TrainOptions& options, Task& task, const comm::Group& group,
                           int64_t steps, int64_t global_batch, Trace* trace,
                           std::function<void()> before_step)
    : options_(options),
      task_(task),
      group_(group),
      placement_(Placement::of(options, group)),
      recipe_(task.configure_optimizers(options)),
      accumulation_(accumulation(options)),
      schedule_(make_schedule(recipe_, accumulation_, steps, global_batch)),
      before_step_(std::move(before_step)) {
  placement_.require_trainable(options);
  if (recipe_.schedule.name == "plateau" && !recipe_.factor) plateau_.emplace(recipe_.schedule);
  placement_.place(task_.module());
  recompute_budget_ = nn::recompute_budget(options.trainer.recompute);
  if (recompute_budget_) {
    task_.blocks();
  } else if (options.trainer.recompute != "none") {
    task_.recompute(nn::recompute_plan(options.trainer.recompute, task_.blocks().blocks().size()));
  }
  if (!options.offload.activations.empty()) {
    if (task_.replicas() > 1) {
      throw Error("train", ErrorKind::usage,
                  {.what = "offload.activations is for processes that each train one replica",
                   .got = "strategy " + options.trainer.strategy,
                   .expected = "ddp, or another strategy of processes"});
    }
    offload_.emplace(options.offload.activations);
  }
  TrainOptions own = options;
  own.optimizer = recipe_.optimizer;
  exchange_ = make_exchange(own, task_, group, trace);
  optimization_.emplace(placement_.precision, task_.module(), *exchange_, recipe_);
}

at::Tensor TrainingStep::pass(const data::Batch& batch, bool is_first, bool is_last, int64_t step,
                              StepTimes& times) {
  const data::Batch placed = placement_.place(batch);
  if (recompute_budget_) plan_recomputation(placed.inputs);
  memory::restart_peak();
  if (is_first) task_.module().zero_grad(/*set_to_none=*/true);
  std::optional<parallel::Exchange::NoSync> no_sync;
  if (!is_last) no_sync.emplace(*exchange_);
  const at::Tensor loss = [&] {
    std::optional<compat::SavedTensorGuard> saved;
    if (offload_) saved.emplace(*offload_);
    const nn::Autocast autocast(placement_.precision, placement_.device.type());
    return task_.training_step(placed);
  }();
  times.end(Phase::forward);
  optimization_->scaled(accumulation_.factor == 1 ? loss : loss * accumulation_.factor).backward();
  times.end(Phase::backward);
  if (is_last) optimizer_step(step, times);
  if (compat::counts_tensor_memory()) {
    peak_tensor_bytes_ = std::max(peak_tensor_bytes_, memory::peak());
  }
  return loss.detach();
}

// One plan for all ranks, by their slowest: blocks may hold collectives, which must pair.
void TrainingStep::plan_recomputation(const at::Tensor& input) {
  const int64_t budget = *std::exchange(recompute_budget_, std::nullopt);
  std::vector<nn::BlockCost> costs = [&] {
    const nn::Autocast autocast(placement_.precision, placement_.device.type());
    return nn::measure_blocks(task_.blocks(), input);
  }();
  const auto agreed = at::empty({static_cast<int64_t>(costs.size()), 4}, at::kDouble);
  auto rows = agreed.accessor<double, 2>();
  for (size_t i = 0; i < costs.size(); ++i) {
    auto row = rows[static_cast<int64_t>(i)];
    row[0] = costs[i].forward;
    row[1] = costs[i].backward;
    row[2] = static_cast<double>(costs[i].output_bytes);
    row[3] = static_cast<double>(costs[i].saved_bytes);
  }
  group_.all_reduce(agreed, comm::ReduceOp::max, {.label = "costs of blocks"});
  for (size_t i = 0; i < costs.size(); ++i) {
    auto row = rows[static_cast<int64_t>(i)];
    costs[i] = {.forward = row[0],
                .backward = row[1],
                .output_bytes = static_cast<int64_t>(row[2]),
                .saved_bytes = static_cast<int64_t>(row[3])};
  }
  task_.recompute(nn::plan_for_budget(costs, budget).plan);
}

void TrainingStep::optimizer_step(int64_t step, StepTimes& times) {
  exchange_->finish_backward();
  times.end(Phase::exposed_communication);
  // A skipped step does not move the schedule on.
  optimization_->set_learning_rate(recipe_.optimizer.lr *
                                   schedule_(step - optimization_->skipped()) *
                                   (plateau_ ? plateau_->factor() : 1.0));
  before_step_();
  optimization_->clip(*exchange_, options_.trainer.gradient_clip_val,
                      options_.trainer.gradient_clip_algorithm);
  optimization_->step(*exchange_);
  times.end(Phase::optimizer);
}

void TrainingStep::judge(double validation_loss) {
  if (plateau_) plateau_->judge(validation_loss);
}

optim::NamedTensors TrainingStep::model() {
  exchange_->gather_parameters();
  return model_state(task_.module(), optimization_->masters(*exchange_));
}

optim::NamedTensors TrainingStep::state(bool in_step) const {
  optim::NamedTensors result;
  append(result, kOptimizer, optimization_->state(*exchange_));
  append(result, kExchange, exchange_->state());
  if (plateau_) result.emplace_back(kPlateau, plateau_->state());
  result.emplace_back(kMemoryFormat,
                      at::scalar_tensor(static_cast<int64_t>(states_format()), at::kLong));
  if (!in_step) return result;
  for (const auto& parameter : nn::trained_parameters(task_.module())) {
    // A gradient that this rank lacks must not be taken from rank 0.
    const auto& gradient = parameter.tensor.grad();
    result.emplace_back(std::string(kGradient) + parameter.name,
                        gradient.defined() ? gradient : at::empty({0}));
  }
  return result;
}

at::MemoryFormat TrainingStep::states_format() const {
  return exchange_->shards().empty() ? placement_.memory_format : at::MemoryFormat::Contiguous;
}

// Blocks of adamw_8bit and what gradients' codecs keep run over the weights as they lie in memory;
// everything else is saved by its dimensions.
void TrainingStep::require_readable(const optim::NamedTensors& state) const {
  const bool follows_memory =
      recipe_.optimizer.name == "adamw_8bit" || options_.ddp.codec.name != "none";
  const auto saved = std::find_if(state.begin(), state.end(),
                                  [](const auto& item) { return item.first == kMemoryFormat; });
  if (!follows_memory || saved == state.end()) return;
  if (saved->second.item<int64_t>() == static_cast<int64_t>(states_format())) return;
  const auto name = [](bool is_last) { return is_last ? "channels_last" : "contiguous"; };
  const bool is_last = states_format() == at::MemoryFormat::ChannelsLast;
  throw Error("train", ErrorKind::usage,
              {.what = "states of adamw_8bit and of ddp.hook follow the order of weights in memory",
               .got = fmt::format("a checkpoint of {} for {}", name(!is_last), name(is_last)),
               .expected = "the same order",
               .hint = exchange_->shards().empty()
                           ? fmt::format("set trainer.memory_format to {}", name(!is_last))
                           : "ZeRO keeps weights contiguous: go on with ddp"});
}

void TrainingStep::load(const optim::NamedTensors& model, const optim::NamedTensors& state) {
  require_readable(state);
  optim::NamedTensors optimizer;
  optim::NamedTensors exchange;
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(kOptimizer)) {
      optimizer.emplace_back(name.substr(kOptimizer.size()), tensor);
    } else if (name.starts_with(kExchange)) {
      exchange.emplace_back(name.substr(kExchange.size()), tensor);
    } else if (name.starts_with(kGradient)) {
      gradients.emplace(name.substr(kGradient.size()), tensor);
    } else if (name == kPlateau && plateau_) {
      plateau_->load_state(tensor);
    }
  }
  load_into(model_state(task_.module()), model, "the checkpoint");
  optimization_->load(*exchange_, optimizer, model);
  exchange_->load_state(exchange);
  // The exchange may have made buffers rank 0's.
  load_into(model_state(task_.module()), model, "the checkpoint");
  load_gradients(gradients);
}

void TrainingStep::load_gradients(const std::map<std::string, at::Tensor>& gradients) {
  for (auto& parameter : nn::trained_parameters(task_.module())) {
    const auto found = gradients.find(parameter.name);
    if (found == gradients.end() || found->second.numel() != parameter.tensor.numel()) continue;
    const at::NoGradGuard no_grad;
    parameter.tensor.mutable_grad() = at::empty_like(parameter.tensor).copy_(found->second);
  }
}

}  // namespace troika::train
