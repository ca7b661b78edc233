#include "troika/train/memory/prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/comm/mailboxes.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/plan/memory/batch_memory.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/memory/batches.h"
#include "troika/train/memory/module_exchange.h"
#include "troika/train/memory/pipeline_memory.h"
#include "troika/train/memory/predicted_cut.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

using layout::Axis;

namespace {

// Measured as the memory of processes beyond their libraries and their tensors' peak
// (docs/precision-and-memory.md). This constant covers threads, buffers of the BLAS, and code that
// is paged in.
constexpr double kRunBytes = 32.0 * (1 << 20);
// malloc() keeps freed tensors in its heap, which fragments. This is the fraction kept of the bytes
// that come and go in a step. Blocks of 32 MiB or more are never in the heap (M_MMAP_THRESHOLD of
// mallopt(3)).
constexpr double kKeptShare = 0.5;
constexpr size_t kLeastOutsideHeap = 32U << 20;

std::shared_ptr<Task> task_without_memory(const TrainOptions& options) {
  const compat::FakeTensorGuard no_memory;
  auto task = std::make_shared<Task>(nn::make_model(options.model));
  task->use_loss_terms(options.trainer.loss_terms);
  return task;
}

std::vector<size_t> order_of_gradients(const std::vector<PassPart>& parts) {
  std::vector<size_t> order;
  for (const auto& part : parts) {
    if (part.until.kind == PassEvent::Kind::gradient) order.push_back(part.until.index);
  }
  return order;
}

double left_for_backward(const std::vector<PassPart>& parts) {
  const auto done = std::find_if(parts.begin(), parts.end(), [](const PassPart& part) {
    return part.until.kind == PassEvent::Kind::forward_done;
  });
  return done->live;
}

bool has_cut_axis(const layout::Plan& plan) {
  return std::ranges::any_of(
      plan.mesh.axes(), [](Axis axis) { return axis == Axis::tensor || axis == Axis::context; });
}

bool has_other_axes(const layout::Mesh& mesh) {
  return mesh.size(Axis::expert) > 1;
}

bool has_convolutions(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(), [](const auto& one) { return one.dim() > 2; });
}

void follow(plan::ExchangeMemory& exchange, const PassEvent& event) {
  if (event.kind == PassEvent::Kind::gradient) exchange.gradient(event.index);
  if (event.kind == PassEvent::Kind::block) exchange.block(event.index, event.next);
}

}  // namespace

double MemoryPrediction::training_peak_of(int replica) const {
  const double less = replica > 0 ? of_first_replica : 0;
  return std::max(start, std::max(step.sum(), between_steps) - less);
}

MemoryPredictor::MemoryPredictor(const TrainOptions& options, const data::Dataset& dataset)
    : options_(options),
      dataset_(dataset),
      task_(task_without_memory(options)),
      module_(task_->module()),
      is_made_whole_(false),
      model_(dynamic_cast<const nn::Model*>(&module_)) {}

MemoryPredictor::MemoryPredictor(const TrainOptions& options, const data::Dataset& dataset,
                                 Task& task)
    : options_(options),
      dataset_(dataset),
      task_(std::shared_ptr<Task>(), &task),
      module_(task.module()),
      is_made_whole_(!task.defers_values()),
      model_(dynamic_cast<const nn::Model*>(&module_)) {
  const compat::FakeTensorGuard no_memory;
  for (auto& [name, tensor] : nn::named_state(module_)) {
    spared_.push_back({tensor, tensor.tensor_data(), tensor.mutable_grad()});
    tensor.mutable_grad().reset();
    tensor.set_data(at::empty_like(spared_.back().data));
  }
}

MemoryPredictor::~MemoryPredictor() {
  for (auto& [tensor, data, gradient] : spared_) {
    tensor.mutable_grad().reset();
    tensor.set_data(data);
    tensor.mutable_grad() = gradient;
  }
}

data::Batch MemoryPredictor::some_batch(int64_t size) const {
  return dataset_.load(std::vector<int64_t>(static_cast<size_t>(size), 0), {});
}

double MemoryPredictor::batch_bytes(int64_t samples) const {
  size_t bytes = 0;
  for (const auto& [name, tensor] : some_batch(1).tensors()) bytes += tensor.nbytes();
  return static_cast<double>(bytes) * static_cast<double>(samples);
}

MemoryChoice MemoryPredictor::configured(int ranks) const {
  // Neither the name nor the model depends on the cluster.
  const auto plan = resolve_plan(options_, layout::Cluster());
  require_same_model(options_, plan, *task_);
  return {.strategy = plan.strategy,
          .precision = nn::parse_precision(options_.trainer.precision).name,
          .recompute = options_.trainer.recompute,
          .ranks = ranks,
          .nodes = static_cast<int>(std::clamp<int64_t>(options_.trainer.num_nodes, 1, ranks))};
}

std::string MemoryPredictor::why_not(const MemoryChoice& choice) const {
  // The name does not depend on the cluster.
  const auto own = resolve_plan(options_, layout::Cluster());
  const bool is_cut = is_pipeline(own) || has_cut_axis(own);
  if (is_cut && choice.strategy != own.strategy) {
    return fmt::format("strategy {} with options that cut the model", choice.strategy);
  }
  layout::Plan plan;
  try {
    plan = this->plan(choice);
    if (model_ && is_pipeline(plan) && plan.schedule != layout::kAutomaticSchedule) {
      PipelineShapes(*model_, plan);
    }
  } catch (const Error& problem) {
    if (problem.kind() != ErrorKind::usage || !is_cut) throw;
    return fmt::format("{} ranks: {}", choice.ranks, problem.what());
  }
  const auto stage = plan.exchange.zero_stage;
  const bool is_summation = plan.exchange.method == layout::ExchangeMethod::summation;
  if (plan.threads > 0 || !plan.keeps_replicas_equal() || is_summation)
    return "strategy " + choice.strategy;
  const auto& codec = plan.compression.codec;
  if (stage == 0 && codec != "none") return "ddp.hook " + codec;
  // Small tensors stay in memory, so the memory is not affine in the batch size.
  if (!plan.offload.activations.empty()) return "offload.activations";
  if (!model_ && stage == 3) return "zero3 of a module without blocks";
  if (!task_->has_blocks() && choice.recompute != "none") {
    return "trainer.recompute of a module without blocks";
  }
  const auto& mesh = plan.mesh;
  if (auto reason = why_not_cut(plan, choice.ranks); !reason.empty()) return reason;
  if (mesh.has_uneven_stages() && stage > 0)
    return "ZeRO on stages with different numbers of replicas";
  if (mesh.ranks() != choice.ranks || has_other_axes(mesh)) {
    return fmt::format("mesh {} on {} ranks", mesh.text(), choice.ranks);
  }
  if (is_pipeline(plan)) {
    const bool is_timed = plan.stages.cut.empty() && options_.trainer.plan.empty() &&
                          options_.pipeline.cut_by == "time";
    if (plan.schedule == layout::kAutomaticSchedule || is_timed) {
      return "stages or a schedule that follow from times";
    }
    if (!model_) return "stages of a module without blocks";
  } else if (plan.stages.cut.find('|') != std::string::npos || mesh.size(Axis::pipeline) > 1) {
    return "stages without a schedule";
  }
  if (mesh.replicas(0) * mesh.size(Axis::context) % plan.sharing_ranks() != 0) {
    return fmt::format("zero.group_size {} of {} ranks", plan.sharing_ranks(), choice.ranks);
  }
  return {};
}

layout::Plan MemoryPredictor::plan(const MemoryChoice& choice) const {
  const auto cluster = layout::Cluster::uniform(1, choice.ranks);
  auto options = options_;
  if (!options.trainer.plan.empty()) {
    auto plan = resolve_plan(options, cluster);
    if (plan.strategy == choice.strategy) return plan;
    options = with_strategy(options, choice.strategy);
  }
  options.trainer.strategy = choice.strategy;
  auto plan = resolve_plan(options, cluster);
  if (!is_pipeline(plan) || !task_->has_blocks()) return plan;
  if (plan.schedule == layout::kAutomaticSchedule) return plan;
  const int replicas = plan.mesh.replicas(0);
  const int64_t batch = choice.batch > 0
                            ? choice.batch
                            : (global_batch(options_, replicas) + replicas - 1) / replicas;
  const auto key = fmt::format("{} {} {}", plan.text(), choice.precision, batch);
  auto found = cuts_.find(key);
  if (found == cuts_.end()) {
    found = cuts_.emplace(key, predicted_cut(options_, plan, *task_, dataset_, batch)).first;
  }
  if (plan.stages.cut.empty()) plan.stages.cut = found->second;
  return plan;
}

int64_t MemoryPredictor::batch_of(const MemoryChoice& choice) const {
  if (choice.batch > 0) return choice.batch;
  const int replicas = plan(choice).mesh.replicas(0);
  return (global_batch(options_, replicas) + replicas - 1) / replicas;
}

// Plans for a whole batch, as training does: smaller batches would get different plans.
layout::RecomputePlan MemoryPredictor::recompute_of(const MemoryChoice& choice,
                                                    const nn::NumericPrecision& precision) const {
  const auto budget = layout::recompute_budget(choice.recompute);
  if (!task_->has_blocks()) return {};
  if (!budget) return layout::recompute_plan(choice.recompute, model_->blocks().size());
  const auto batch = some_batch(1);
  auto inputs = task_->block_inputs(batch);
  const auto asked = task_->output_loss(batch);
  const compat::FakeTensorGuard no_memory;
  const auto enlarge = [&](at::Tensor& one) {
    auto sizes = one.sizes().vec();
    sizes.at(0) = batch_of(choice);
    const auto type = one.scalar_type();
    one = at::empty(sizes,
                    one.options().dtype(at::isFloatingType(type) ? precision.parameters : type));
  };
  for (auto& input : inputs) enlarge(input);
  std::shared_ptr<nn::OutputLoss> loss;
  if (asked) enlarge((loss = std::make_shared<nn::OutputLoss>(*asked))->targets);
  const nn::Autocast autocast(precision, at::kCPU);
  const nn::KeyedDraws draws(nn::some_samples(batch_of(choice)));
  return layout::plan_for_budget(nn::estimate_blocks(*model_, inputs, loss), *budget).plan;
}

// Does not return a batch of one sample, which batch norms refuse, unless the options ask for it.
std::pair<int64_t, int64_t> MemoryPredictor::sample_batches(const MemoryChoice& choice) const {
  // For fewer samples, oneDNN computes some convolutions in another way, with less memory.
  const int64_t smaller = has_convolutions(module_) ? 4 : 2;
  const int64_t larger = choice.batch > 0 ? 2 * smaller : std::min(2 * smaller, batch_of(choice));
  return {std::min(smaller, (larger + 1) / 2), larger};
}

const PassMemory& MemoryPredictor::pass_of(const MemoryChoice& choice) {
  const auto [smaller, larger] = sample_batches(choice);
  // Plans of policies without a budget are the same for all batches.
  const bool has_budget = layout::recompute_budget(choice.recompute).has_value();
  const std::tuple key(choice.precision, choice.recompute, has_budget ? batch_of(choice) : larger,
                       plan(choice).mesh.text());
  if (const auto known = passes_.find(key); known != passes_.end()) return known->second;
  const auto precision = nn::parse_precision(choice.precision);
  nn::require_supported(precision, at::kCPU);
  task_->recompute(recompute_of(choice, precision));
  const auto small = some_batch(smaller), large = some_batch(larger);
  const compat::FakeTensorGuard no_memory;
  return passes_.try_emplace(key, *task_, precision, small, large).first->second;
}

double MemoryPredictor::optimizer_bytes(const nn::NumericPrecision& precision,
                                        int64_t elements) const {
  return optimizer_bytes_each(options_.optimizer, precision) * static_cast<double>(elements);
}

double MemoryPredictor::passing_gradients() const {
  double bytes = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(module_)) {
    if (tensor.nbytes() < kLeastOutsideHeap) bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

double MemoryPredictor::average_bytes(const nn::NumericPrecision& precision,
                                      int64_t elements) const {
  const auto type = precision.needs_masters() ? at::kFloat : precision.parameters;
  const auto one = static_cast<double>(elements) * static_cast<double>(at::elementSize(type));
  double bytes = options_.swa.swa_lrs > 0 ? one : 0;
  if (!options_.ema.enabled) return bytes;
  bytes += one;
  if (!options_.ema.use_buffers) return bytes;
  for (const auto& buffer : module_.buffers()) bytes += static_cast<double>(buffer.nbytes());
  return bytes;
}

std::vector<MemoryPrediction> MemoryPredictor::predict_ranks(const MemoryChoice& choice) {
  if (const auto reason = why_not(choice); !reason.empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = "memory is not predicted for this", .got = reason});
  }
  if (is_pipeline(plan(choice))) return predict_pipeline(choice);
  return {predict_one_stage(choice)};
}

MemoryPrediction MemoryPredictor::predict(const MemoryChoice& choice) {
  const auto ranks = predict_ranks(choice);
  return *std::ranges::max_element(ranks, {}, &MemoryPrediction::process);
}

double MemoryPredictor::overhead(const MemoryParts& step) const {
  return kRunBytes + kKeptShare * (step.activations + step.workspace + passing_gradients());
}

MemoryPrediction MemoryPredictor::predict_one_stage(const MemoryChoice& choice) {
  const auto precision = nn::parse_precision(choice.precision);
  {
    const compat::FakeTensorGuard no_memory;
    module_.to(precision.parameters);
  }
  const auto plan = this->plan(choice);
  const auto whole = whole_bytes();
  const auto cut = cut_layers(plan);
  const auto samples = cut_samples(plan);
  const auto parts = pass_of(choice).parts(batch_of(choice));
  const bool is_zero = plan.exchange.zero_stage > 0;
  auto exchange =
      exchange_of(module_,
                  {.stage = static_cast<int>(plan.exchange.zero_stage),
                   .ranks = is_zero ? static_cast<int>(plan.sharing_ranks())
                                    : plan.mesh.size(Axis::data) * plan.mesh.size(Axis::context),
                   .bucket_bytes = plan.exchange.bucket_bytes,
                   .first_bucket_bytes = plan.exchange.first_bucket_bytes,
                   .reorders_buckets = !plan.exchange.find_unused_parameters,
                   .accumulates = plan.micro_batches > 1,
                   .shard_multiple = is_zero ? optim::shard_multiple(options_.optimizer.name) : 1},
                  order_of_gradients(parts));
  MemoryParts steady;
  steady.optimizer =
      optimizer_bytes(precision, exchange.stepped()) + average_bytes(precision, exchange.stepped());
  steady.batches = plan::batch_bytes(
      {}, batches_of(options_, some_batch(1), Placement{.precision = precision}, batch_of(choice)));
  const double kept = left_for_backward(parts);  // of a micro-batch, and of one beside it
  const double beside = plan.stages.tensor_overlap ? kept + batch_bytes(batch_of(choice)) : 0;
  MemoryPrediction result{.choice = choice};
  const auto consider = [&](double in_pass) {
    const auto held = exchange.held();
    MemoryParts now = steady;
    now.parameters = static_cast<double>(held.parameters);
    now.gradients = static_cast<double>(held.gradients);
    now.buckets = static_cast<double>(held.buckets);
    in_pass = std::min(in_pass, choice.most_in_pass.value_or(in_pass)) + beside;
    now.activations = std::min(in_pass, kept + beside);
    now.workspace = in_pass - now.activations;
    if (now.sum() > result.step.sum()) result.step = now;
  };
  exchange.begin_pass();
  // A copied gradient exists twice for a moment: before its event, and at it. One that stays counts
  // from its event on, including the next part; the last part has no next part.
  for (const auto& part : parts) {
    const bool is_end = part.until.kind == PassEvent::Kind::end;
    if (!exchange.is_alone() || !is_end) consider(part.peak);
    follow(exchange, part.until);
    if (!exchange.is_alone() || is_end) consider(part.live);
  }
  result.between_steps =
      steady.optimizer + steady.batches + static_cast<double>(exchange.between_passes().sum());
  // The validation's loader exists beside the training's loader.
  result.validation = steady.optimizer + 2 * steady.batches +
                      static_cast<double>(exchange.validation().sum()) +
                      pass_of(choice).validation(batch_of(choice));
  if (options_.ema.enabled) {
    // Weights replaced by the average stay in memory during a validation.
    result.validation += static_cast<double>(exchange.stepped()) *
                         static_cast<double>(at::elementSize(precision.parameters));
  }
  result.overhead = overhead(result.step);
  result.mailboxes = static_cast<double>(
      comm::most_mailbox_bytes(options_.comm.backend, choice.ranks, choice.nodes));
  // The model is made in float32, then cast tensor by tensor; the optimizer is made last.
  const bool is_cut = plan.mesh.size(Axis::tensor) > 1;
  const bool comes_in_parts =
      (plan.exchange.zero_stage == 3 || is_cut) && !is_made_whole_ && options_.weights.path.empty();
  const auto element_bytes = static_cast<double>(at::elementSize(precision.parameters));
  const double each = precision.parameters == at::kFloat ? 1 : 1 + 4 / element_bytes;
  const auto start =
      comes_in_parts && !is_cut ? start_without_values(exchange, each) : start_of(exchange);
  // A rank of a tensor axis keeps its shard of each parameter that is made.
  const double in_parts =
      is_cut ? static_cast<double>(exchange.whole()) + each * whole.largest : 0.0;
  const double made = comes_in_parts ? in_parts : whole.made;
  result.start =
      std::max({made, static_cast<double>(start.peak),
                static_cast<double>(start.left) + optimizer_bytes(precision, exchange.stepped())});
  return result;
}

}  // namespace troika::train
