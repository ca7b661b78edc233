#include "troika/train/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/memory.h"
#include "troika/base/random.h"
#include "troika/compat/module_members.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/state.h"
#include "troika/train/checkpoint/reader.h"
#include "troika/train/make_exchange.h"

namespace troika::train {

namespace {

constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kExchange = "exchange.";
constexpr const char* kPlateau = "plateau";
constexpr const char* kMemoryFormat = "memory_format";

NamedTensors stepped(const Optimization& optimization) {
  NamedTensors result;
  for (const auto& parameter : optimization.parameters()) {
    result.emplace_back(parameter.name, parameter.tensor, parameter.box);
  }
  return result;
}

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
  // A sum of passes already is larger by their number.
  const int64_t averaged = plan.sums_micro_batches ? 1 : plan.micro_batches;
  return optim::make_schedule(recipe.schedule,
                              {.steps = steps, .global_batch = global_batch * averaged});
}

// To a folder, or from a GPU to "host".
std::shared_ptr<compat::SavedTensorHooks> make_offload(const std::string& to,
                                                       const at::Device& device) {
  const bool to_host = to == "host";
  if (to_host == device.is_cpu()) {
    throw Error("train", ErrorKind::usage,
                {.what = "offload.activations does not go with where the run computes",
                 .got = to + " for " + device.str(),
                 .expected = device.is_cpu() ? "a folder for files" : "host"});
  }
  if (to_host) return std::make_shared<nn::HostOffload>();
  return std::make_shared<nn::ActivationOffload>(to);
}

// As Module::zero_grad(true), without its lists of names.
void drop_gradients(const torch::nn::Module& module) {
  compat::for_each_member(module, [](const compat::ModuleMember& member) {
    const auto& tensor = member.tensor;
    if (tensor.defined() && !member.is_buffer && tensor.grad().defined()) {
      tensor.mutable_grad().reset();
    }
  });
}

// As Tensor::item<double>(), without its calls through LibTorch's dispatcher where none is needed.
double number(const at::Tensor& loss) {
  if (loss.is_cpu() && loss.numel() == 1) {
    if (loss.scalar_type() == at::kFloat) return *loss.data_ptr<float>();
    if (loss.scalar_type() == at::kDouble) return *loss.data_ptr<double>();
  }
  return loss.item<double>();
}

}  // namespace

TrainingStep::TrainingStep(const TrainOptions& options, const layout::Plan& plan, Task& task,
                           const comm::MeshGroups& groups, int64_t steps, int64_t global_batch,
                           Trace* trace, std::function<void()> before_step)
    : options_(options),
      plan_(plan),
      task_(task),
      groups_(groups),
      placement_(Placement::of(options, groups.world())),
      recipe_(task.configure_optimizers(options)),
      schedule_(make_schedule(recipe_, plan, steps, global_batch)),
      before_step_(std::move(before_step)) {
  placement_.require_trainable(plan, options.trainer.accelerator);
  if (placement_.device.is_cpu()) compat::keep_freed_memory();
  if (recipe_.schedule.name == "plateau" && !recipe_.factor) plateau_.emplace(recipe_.schedule);
  if (plan.exchange.zero_stage < 3) task_.make_values();
  const auto values = task_.take_values();
  if (values) {
    values->record([&] { placement_.place(task_.module()); });
  } else {
    placement_.place(task_.module());
  }
  const auto tensors = nn::named_state(task_.module());
  counts_memory_ =
      placement_.device.is_cpu() && compat::counts_tensor_memory() &&
      std::ranges::all_of(tensors, [&](const auto& entry) {
        return (values && values->has(entry.second)) || compat::is_counted(entry.second);
      });
  recompute_budget_ = layout::recompute_budget(plan.recompute);
  if (recompute_budget_) {
    task_.blocks();
  } else if (plan.recompute == "none") {
    task_.recompute({});
  } else {
    task_.recompute(layout::recompute_plan(plan.recompute, task_.blocks().blocks().size()));
  }
  if (!plan.offload_activations.empty()) {
    if (task_.replicas() > 1) {
      throw Error("train", ErrorKind::usage,
                  {.what = "offload.activations is for processes that each train one replica",
                   .got = "strategy " + plan.strategy,
                   .expected = "ddp, or another strategy of processes"});
    }
    offload_ = make_offload(plan.offload_activations, placement_.device);
    if (task_.has_blocks()) {
      offloading_ = nn::offload(dynamic_cast<nn::Model&>(task_.module()), std::move(offload_));
    }
  }
  TrainOptions own = options;
  own.optimizer = recipe_.optimizer;
  exchange_ = make_exchange(plan, own, task_, groups.data(), trace, values.get());
  try {
    optimization_.emplace(placement_.precision, *exchange_, recipe_);
  } catch (const Error&) {
    try_to_make_whole();
    throw;
  }
}

double TrainingStep::pass(const data::Batch& batch, bool is_first, bool is_last, int64_t step,
                          StepTimes& times) {
  const data::Batch placed = placement_.place(batch);
  // Until the backward pass, which makes masks again.
  std::optional<nn::KeyedDraws> draws;
  if (!placed.samples.empty()) {
    draws.emplace(
        nn::SampleKeys{mix(static_cast<uint64_t>(options_.run.seed), static_cast<uint64_t>(step)),
                       placed.samples});
  }
  if (recompute_budget_) plan_recomputation(placed);
  memory::restart_peak();
  if (is_first) drop_gradients(task_.module());
  std::optional<parallel::Exchange::NoSync> no_sync;
  if (!is_last) no_sync.emplace(*exchange_);
  const at::Tensor loss = [&] {
    std::optional<compat::SavedTensorGuard> saved;
    if (offload_) saved.emplace(*offload_);
    const nn::Autocast autocast(placement_.precision, placement_.device.type());
    return task_.training_step(placed);
  }();
  times.end(Phase::forward);
  const bool is_averaged = plan_.micro_batches > 1 && !plan_.sums_micro_batches;
  const double factor = 1.0 / static_cast<double>(plan_.micro_batches);
  optimization_->scaled(is_averaged ? loss * factor : loss).backward();
  times.end(Phase::backward);
  if (is_last) optimizer_step(step, times);
  if (counts_memory_) {
    peak_tensor_bytes_ = std::max(peak_tensor_bytes_, memory::peak());
  }
  return number(loss);
}

// One plan for all ranks, by their slowest: blocks may hold collectives, which must pair.
void TrainingStep::plan_recomputation(const data::Batch& batch) {
  const int64_t budget = *std::exchange(recompute_budget_, std::nullopt);
  // Blocks are measured one by one, outside of a pass, which would gather what each needs.
  if (exchange_->shares_parameters()) exchange_->agree();
  std::vector<layout::BlockCost> costs = [&] {
    const nn::Autocast autocast(placement_.precision, placement_.device.type());
    return nn::measure_blocks(task_.blocks(), task_.block_inputs(batch), task_.output_loss(batch));
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
  groups_.world().all_reduce(agreed, comm::ReduceOp::max, {.label = "costs of blocks"});
  for (size_t i = 0; i < costs.size(); ++i) {
    auto row = rows[static_cast<int64_t>(i)];
    costs[i] = {.forward = row[0],
                .backward = row[1],
                .output_bytes = static_cast<int64_t>(row[2]),
                .saved_bytes = static_cast<int64_t>(row[3])};
  }
  task_.recompute(layout::plan_for_budget(costs, budget).plan);
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

void TrainingStep::judge(std::optional<double> validation_loss) {
  if (!plateau_) return;
  if (!validation_loss) {
    throw Error("train", ErrorKind::usage,
                {.what = "optim.schedule=plateau follows validation/loss",
                 .got = "a validation whose steps gave none",
                 .expected = "a task that adds its loss to the Evaluation, or another schedule"});
  }
  plateau_->judge(*validation_loss);
}

RankState TrainingStep::state(bool in_step) const {
  const auto masters = optimization_->masters();
  const bool in_parts =
      exchange_->shares_parameters() || (exchange_->has_pieces() && !masters.empty());
  RankState result{
      .model = model_state(task_.module(), in_parts ? stepped(*optimization_) : masters),
      .rest = {}};
  state::append(result.rest, kOptimizer, optimization_->state());
  state::append(result.rest, kExchange, exchange_->state());
  if (plateau_) result.rest.emplace_back(kPlateau, plateau_->state());
  result.rest.emplace_back(kMemoryFormat,
                           at::scalar_tensor(static_cast<int64_t>(states_format()), at::kLong));
  if (!in_step) return result;
  for (const auto& parameter : nn::trained_parameters(task_.module())) {
    // A gradient that this rank lacks must not be taken from rank 0.
    const auto& gradient = parameter.second.grad();
    result.rest.emplace_back(kGradientPrefix + parameter.first,
                             gradient.defined() ? gradient : at::empty({0}));
  }
  return result;
}

at::MemoryFormat TrainingStep::states_format() const {
  return exchange_->has_pieces() ? at::MemoryFormat::Contiguous : placement_.memory_format;
}

// Blocks of adamw_8bit and what gradients' codecs keep run over the weights as they lie in memory;
// everything else is saved by its dimensions.
void TrainingStep::require_readable(const CheckpointReader& saved) const {
  const bool follows_memory =
      recipe_.optimizer.name == "adamw_8bit" || plan_.compression.codec != "none";
  if (!follows_memory || !saved.has(kMemoryFormat)) return;
  const auto format = saved.read(kMemoryFormat).item<int64_t>();
  if (format == static_cast<int64_t>(states_format())) return;
  const auto name = [](bool is_last) { return is_last ? "channels_last" : "contiguous"; };
  const bool is_last = states_format() == at::MemoryFormat::ChannelsLast;
  throw Error("train", ErrorKind::usage,
              {.what = "states of adamw_8bit and of ddp.hook follow the order of weights in memory",
               .got = fmt::format("a checkpoint of {} for {}", name(!is_last), name(is_last)),
               .expected = "the same order",
               .hint = !exchange_->has_pieces()
                           ? fmt::format("set trainer.memory_format to {}", name(!is_last))
                           : "ZeRO keeps weights contiguous: go on with ddp"});
}

void TrainingStep::load_model(const CheckpointReader& saved) {
  const auto own = model_state(task_.module());
  Shapes shapes, saved_shapes;
  for (const auto& [name, tensor] : own) shapes.emplace_back(name, tensor.sizes().vec());
  for (const auto& name : saved.names(kModelPrefix)) {
    saved_shapes.emplace_back(name.substr(std::string_view(kModelPrefix).size()),
                              saved.shape(name));
  }
  require_fit(shapes, saved_shapes, saved.path().string());
  const auto key = [&](const std::string& name) {
    return (saved.has(kRawPrefix + name) ? kRawPrefix : kModelPrefix) + name;
  };
  const at::NoGradGuard no_grad;
  std::set<std::string> done;
  for (const auto& parameter : optimization_->parameters()) {
    if (!parameter.box) continue;
    auto box = *parameter.box;
    box.name = key(parameter.name);
    parameter.tensor.copy_(saved.read(box).view_as(parameter.tensor));
    done.insert(parameter.name);
  }
  const auto masters = optimization_->masters();
  const std::map<std::string, at::Tensor> master_of(masters.begin(), masters.end());
  for (const auto& [name, tensor] : own) {
    if (done.contains(name)) continue;
    const auto value = saved.read(key(name));
    tensor.copy_(value);
    const auto master = master_of.find(name);
    if (master != master_of.end()) master->second.copy_(value);
  }
}

std::function<void()> TrainingStep::load(const CheckpointReader& saved,
                                         const NamedTensors& gradients) {
  require_readable(saved);
  if (plateau_ && saved.has(kPlateau)) plateau_->load_state(saved.read(kPlateau));
  load_model(saved);
  optimization_->load(saved, kOptimizer);
  return
      [this, exchange = saved.read_all(kExchange), gradients] { take_loaded(exchange, gradients); };
}

void TrainingStep::take_loaded(const NamedTensors& exchange, const NamedTensors& gradients) {
  exchange_->spread_parameters();
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : task_.module().buffers()) buffers.push_back(buffer.clone());
  exchange_->load_state(exchange);
  // The exchange may have made buffers rank 0's.
  for (size_t i = 0; i < buffers.size(); ++i) task_.module().buffers()[i].copy_(buffers[i]);
  load_gradients({gradients.begin(), gradients.end()});
}

void TrainingStep::try_to_make_whole() {
  if (!exchange_->shares_parameters()) return;
  try {
    exchange_->spread_parameters();
    exchange_->agree();
  } catch (const std::exception& problem) {
    log::warn("the module is left without the parameters that ranks share out: {}", problem.what());
    return;
  }
  // A rank that leaves fails the world, so none leaves before all have their parameters. Where this
  // fails, one has left since: then all have them.
  try {
    groups_.world().barrier({.label = "parameters"});
  } catch (const Error&) {
  }
}

void TrainingStep::load_gradients(const std::map<std::string, at::Tensor>& gradients) {
  for (auto& parameter : nn::trained_parameters(task_.module())) {
    const auto found = gradients.find(parameter.first);
    if (found == gradients.end() || found->second.numel() != parameter.second.numel()) continue;
    const at::NoGradGuard no_grad;
    parameter.second.mutable_grad() = at::empty_like(parameter.second).copy_(found->second);
  }
  exchange_->continue_step();
}

}  // namespace troika::train
