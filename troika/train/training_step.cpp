#include "troika/train/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/train/checkpoint_reader.h"

namespace troika::train {

namespace {

constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kExchange = "exchange.";
constexpr const char* kPlateau = "plateau";
constexpr const char* kMemoryFormat = "memory_format";

void append(NamedTensors& list, const char* prefix, const NamedTensors& more) {
  for (const auto& [name, tensor] : more) list.emplace_back(prefix + name, tensor);
}

void add_shards(RankState& state, const char* prefix, std::vector<parallel::Shard> shards) {
  for (auto& shard : shards) {
    shard.name = prefix + shard.name;
    state.shards.push_back(std::move(shard));
  }
}

NamedTensors stepped(const Optimization& optimization) {
  NamedTensors result;
  for (const auto& [name, tensor, decay] : optimization.parameters()) {
    result.emplace_back(name, tensor);
  }
  return result;
}

optim::Schedule make_schedule(const TrainOptions& options, int64_t steps, int64_t global_batch) {
  const auto accumulated = accumulation(options);
  // A sum of passes already is larger by their number.
  const bool is_mean = accumulated.factor < 1;
  return optim::make_schedule(
      options.schedule,
      {.steps = steps, .global_batch = is_mean ? global_batch * accumulated.passes : global_batch});
}

}  // namespace

TrainingStep::TrainingStep(const TrainOptions& options, Task& task, const comm::Group& group,
                           int64_t steps, int64_t global_batch, Trace* trace,
                           std::function<void()> before_step)
    : options_(options),
      task_(task),
      precision_(nn::parse_precision(options.trainer.precision)),
      memory_format_(nn::parse_memory_format(options.trainer.memory_format, precision_)),
      accumulation_(accumulation(options)),
      schedule_(make_schedule(options, steps, global_batch)),
      before_step_(std::move(before_step)) {
  nn::require_supported(precision_, at::kCPU);
  if (options.schedule.name == "plateau") plateau_.emplace(options.schedule);
  task_.module().to(precision_.parameters);
  nn::lay_out(task_.module(), memory_format_);
  task_.recompute(options.trainer.recompute);
  if (!options.offload.activations.empty()) {
    if (task_.replicas() > 1) {
      throw Error("train", ErrorKind::usage,
                  {.what = "offload.activations is for processes that each train one replica",
                   .got = "strategy " + options.trainer.strategy,
                   .expected = "ddp, or another strategy of processes"});
    }
    offload_.emplace(options.offload.activations);
  }
  exchange_ = make_exchange(options, task_, group, trace);
  optimization_.emplace(precision_, task_.module(), *exchange_, options.optimizer);
}

at::Tensor TrainingStep::pass(const data::Batch& batch, bool is_first, bool is_last, int64_t step,
                              StepTimes& times) {
  memory::restart_peak();
  if (is_first) task_.module().zero_grad(/*set_to_none=*/true);
  std::optional<parallel::Exchange::NoSync> no_sync;
  if (!is_last) no_sync.emplace(*exchange_);
  const at::Tensor loss = [&] {
    std::optional<compat::SavedTensorGuard> saved;
    if (offload_) saved.emplace(*offload_);
    const nn::Autocast autocast(precision_, at::kCPU);
    return task_.training_step(cast(batch));
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

void TrainingStep::optimizer_step(int64_t step, StepTimes& times) {
  exchange_->finish_backward();
  times.end(Phase::exposed_communication);
  // A skipped step does not move the schedule on.
  optimization_->set_learning_rate(options_.optimizer.lr *
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

data::Batch TrainingStep::cast(data::Batch batch) const {
  if (at::isFloatingType(batch.inputs.scalar_type())) {
    batch.inputs = batch.inputs.to(precision_.parameters);
  }
  if (batch.inputs.dim() == 4) batch.inputs = batch.inputs.contiguous(memory_format_);
  return batch;
}

RankState TrainingStep::state(bool in_step) const {
  const auto shards = exchange_->shards();
  const auto masters = optimization_->masters();
  const bool in_parts = exchange_->shares_parameters() || (!shards.empty() && !masters.empty());
  RankState result{
      .model = model_state(task_.module(), in_parts ? stepped(*optimization_) : masters),
      .rest = {}};
  if (in_parts) add_shards(result, kModelPrefix, shards);
  append(result.rest, kOptimizer, optimization_->state());
  add_shards(result, kOptimizer, optimization_->shards(*exchange_));
  append(result.rest, kExchange, exchange_->state());
  if (plateau_) result.rest.emplace_back(kPlateau, plateau_->state());
  result.rest.emplace_back(kMemoryFormat,
                           at::scalar_tensor(static_cast<int64_t>(memory_format_), at::kLong));
  if (!in_step) return result;
  for (const auto& parameter : nn::trained_parameters(task_.module())) {
    // A gradient that this rank lacks must not be taken from rank 0.
    const auto& gradient = parameter.tensor.grad();
    result.rest.emplace_back(kGradientPrefix + parameter.name,
                             gradient.defined() ? gradient : at::empty({0}));
  }
  return result;
}

// Blocks of adamw_8bit and what gradients' codecs keep run over the weights as they lie in memory;
// everything else is saved by its dimensions.
void TrainingStep::require_readable(const CheckpointReader& saved) const {
  const bool follows_memory =
      options_.optimizer.name == "adamw_8bit" || options_.ddp.codec.name != "none";
  if (!follows_memory || !saved.has(kMemoryFormat)) return;
  const auto format = saved.read(kMemoryFormat).item<int64_t>();
  if (format == static_cast<int64_t>(memory_format_)) return;
  const auto name = [](bool is_last) { return is_last ? "channels_last" : "contiguous"; };
  const bool is_last = memory_format_ == at::MemoryFormat::ChannelsLast;
  throw Error("train", ErrorKind::usage,
              {.what = "states of adamw_8bit and of ddp.hook follow the order of weights in memory",
               .got = fmt::format("a checkpoint of {} for {}", name(!is_last), name(is_last)),
               .expected = "the same order",
               .hint = fmt::format("set trainer.memory_format to {}", name(!is_last))});
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
  const at::NoGradGuard no_grad;
  std::set<std::string> done;
  const auto shards = exchange_->shards();
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto& tensor = optimization_->parameters()[i].tensor;
    const auto& shard = shards[i];
    tensor.copy_(saved.read(kModelPrefix + shard.name, shard.offset, shard.count).view_as(tensor));
    done.insert(shard.name);
  }
  const auto masters = optimization_->masters();
  const std::map<std::string, at::Tensor> master_of(masters.begin(), masters.end());
  for (const auto& [name, tensor] : own) {
    if (done.contains(name)) continue;
    const auto value = saved.read(kModelPrefix + name);
    tensor.copy_(value);
    const auto master = master_of.find(name);
    if (master != master_of.end()) master->second.copy_(value);
  }
}

void TrainingStep::load(const CheckpointReader& saved, const NamedTensors& gradients) {
  require_readable(saved);
  if (plateau_ && saved.has(kPlateau)) plateau_->load_state(saved.read(kPlateau));
  load_model(saved);
  optimization_->load(*exchange_, saved, kOptimizer);
  exchange_->spread_parameters();
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : task_.module().buffers()) buffers.push_back(buffer.clone());
  exchange_->load_state(saved.read_all(kExchange));
  // The exchange may have made buffers rank 0's.
  for (size_t i = 0; i < buffers.size(); ++i) task_.module().buffers()[i].copy_(buffers[i]);
  load_gradients({gradients.begin(), gradients.end()});
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
