#include "troika/train/engine/pipeline_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/offload.h"
#include "troika/nn/state.h"
#include "troika/observe/step_times.h"
#include "troika/train/engine/make_exchange.h"
#include "troika/train/engine/make_offload.h"
#include "troika/train/engine/make_whole.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/options/options.h"
#include "troika/train/task/step_error.h"
#include "troika/train/task/task.h"

namespace troika::train {

using layout::Axis;

namespace {

// The prefix, in checkpoints, of the state of a part's exchange. That state refers to the part's
// parameters by number. Another cut or schedule may leave a part of the same blocks with other
// parameters; it then starts with a new state.
std::string key_of(const parallel::Pipeline::OwnExchange& part) {
  int64_t elements = 0, parameters = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(part.module)) {
    elements += tensor.numel();
    ++parameters;
  }
  return fmt::format("{}.{}.{}.", part.name, parameters, elements);
}

}  // namespace

// One batch of an evaluation.
class PipelineEngine::EvaluationSource : public parallel::MicroBatchSource {
 public:
  // `asks`: the model may compute losses instead of outputs.
  EvaluationSource(Task& task, const data::Batch& batch, bool asks)
      : task_(task), batch_(batch), asks_(asks) {}

  nn::Tensors inputs(int) override { return task_.block_inputs(batch_); }
  std::shared_ptr<const nn::OutputLoss> output_loss(int) override {
    if (!asks_) return nullptr;
    auto loss = task_.output_loss(batch_, nn::OutputLoss::Kind::each);
    is_loss_ = loss != nullptr;
    return loss;
  }
  at::Tensor loss(int, nn::Tensors) override { TROIKA_CHECK(false, "evaluations have no loss"); }
  at::Tensor root(int, const at::Tensor&) override {
    TROIKA_CHECK(false, "evaluations have no backward pass");
  }
  bool is_loss() const { return is_loss_; }

 private:
  Task& task_;
  const data::Batch& batch_;
  const bool asks_;
  bool is_loss_ = false;
};

std::shared_ptr<nn::Model> PipelineEngine::model() const {
  return std::dynamic_pointer_cast<nn::Model>(setup_.task.module().shared_from_this());
}

PipelineEngine::PipelineEngine(const EngineSetup& setup)
    : setup_(setup),
      placement_(Placement::of(setup.options, setup.groups.world())),
      recipe_(setup.task.configure_optimizers(setup.options)),
      learning_rate_(recipe_, setup.plan, setup.steps, setup.global_batch) {
  const auto& plan = setup.plan;
  Task& task = setup.task;
  require_plan_fits(setup.options, plan, task);
  if (placement_.device.is_cpu()) compat::keep_freed_memory();
  const bool cuts_layers = plan.mesh.size(Axis::tensor) > 1;
  const auto values = task.take_values();
  finishes_outputs_ = computes_outputs(plan, setup.groups.world().rank());
  // Shards of the only stage are useless to anyone after the run.
  keeps_stages_ = values != nullptr && setup.plan.mesh.size(Axis::pipeline) > 1;
  const bool is_sharded = plan.exchange.method == layout::ExchangeMethod::zero;
  const Placement weights = is_sharded || cuts_layers ? placement_.in_order() : placement_;
  values ? weights.place(task.module(), *values) : weights.place(task.module());
  counts_memory_ =
      placement_.device.is_cpu() && compat::counts_tensor_memory() &&
      std::ranges::all_of(nn::named_state(task.module()), [&](const auto& entry) {
        return (values && values->has(entry.second)) || compat::is_counted(entry.second);
      });
  auto options = pipeline_options(plan);
  const auto& blocks = task.blocks();
  task.recompute(layout::recompute_plan(
      plan.recompute,
      parallel::ends_for(blocks, plan.stages.cut,
                         parallel::passes_for(options, plan.mesh, blocks.blocks().size()))));
  if (!plan.offload.activations.empty()) {
    offloading_ = nn::offload(*model(), make_offload(plan.offload.activations, placement_.device));
  }
  options.memory_format = placement_.memory_format;
  options.precision = placement_.precision;
  options.trace = setup.trace;
  options.values = values.get();
  if (cuts_layers) options.split_table = task.split_table();
  options.sequence_parallel = plan.stages.sequence_parallel;
  options.shards_over_replicas = is_sharded;
  options.one_part = plan.trains_replicas();
  options.make_exchange = [&](torch::nn::Module& part, const comm::Group& data) {
    if (setup.replicas) {
      return make_replica_exchange(plan, setup.options, recipe_, task, part, *setup.replicas);
    }
    return make_stage_exchange(plan, recipe_.optimizer.name, part, data, setup.trace);
  };
  context_ = cut_samples(plan, task, setup.groups.along(layout::Axis::context));
  pipeline_ = std::make_unique<parallel::Pipeline>(model(), setup.groups, options);
  try {
    optimization_.emplace(placement_.precision, *pipeline_, recipe_,
                          CutTensors(*pipeline_, task.module()));
  } catch (const Error&) {
    try_to_make_whole();
    throw;
  }
  std::vector<StateOfStage> stages;
  for (const auto& part : pipeline_->exchanges()) {
    stages.push_back({.key = key_of(part), .module = part.module, .exchange = part.exchange});
  }
  const auto& place = pipeline_->place();
  state_.emplace(
      EngineParts{.plan = plan,
                  .recipe = recipe_,
                  .placement = placement_,
                  .task = task,
                  .stages = std::move(stages),
                  .borrowed = pipeline_->borrowed(),
                  .takes_gradients = !place.shares_micro_batches() || place.replica() == 0,
                  .store = *pipeline_,
                  .optimization = *optimization_,
                  .learning_rate = learning_rate_});
}

PlacedMicroBatches::Parts PipelineEngine::placed_parts() const {
  return {.task = setup_.task,
          .placement = placement_,
          .plan = setup_.plan,
          .seed = setup_.options.run.seed,
          .scaled = [this](const at::Tensor& loss) { return optimization_->scaled(loss); }};
}

StepResult PipelineEngine::step(MicroBatches& batches) {
  TROIKA_CHECK(batches.begin() < batches.count(), "a step has micro-batches left");
  StepResult result;
  std::vector<at::Tensor> losses;
  const int begin = static_cast<int>(batches.begin());
  const int end = static_cast<int>(batches.count());
  PlacedMicroBatches source(placed_parts(), begin);
  for (int i = begin; i < end; ++i) {
    const auto* loaded = batches.next();
    TROIKA_CHECK(loaded, "a pipeline's step is not left between two micro-batches");
    source.take(*loaded, batches.step());
  }
  with_plain_errors(
      "training_step",
      [&] {
        memory::restart_peak();
        if (begin == 0) pipeline_->zero_grad();
        // Forward and backward passes alternate, so all of their time counts as backward.
        setup_.times.end(observe::Phase::forward);
        const auto own = pipeline_->run(source, begin, end);
        setup_.times.end(observe::Phase::backward);
        setup_.times.add_pipeline(pipeline_->times().pass_seconds(),
                                  pipeline_->times().run_seconds());
        const auto all = broadcast_losses(own, begin, end);
        setup_.times.end(observe::Phase::exposed_communication);
        optimizer_step(batches.step());
        losses = all.unbind();
      },
      &source.batch(begin));
  if (counts_memory_) result.peak_tensor_bytes = memory::peak();
  for (const auto& loss : losses) batches.done(loss);
  result.is_complete = true;
  return result;
}

at::Tensor PipelineEngine::broadcast_losses(const std::vector<at::Tensor>& own, int begin,
                                            int end) const {
  const auto losses =
      at::zeros({end - begin}, at::TensorOptions(placement_.device).dtype(at::kDouble));
  const auto& place = pipeline_->place();
  const int last_stage = place.stages() - 1;
  if (place.is_mine(last_stage)) {
    for (int i = begin; i < end; ++i) {
      const auto& loss = own[static_cast<size_t>(i)];
      if (loss.defined()) losses[i - begin].copy_(loss.reshape({}));
    }
  }
  if (place.shares_micro_batches()) {
    // Each rank of the last stage has the losses of its micro-batches.
    setup_.groups.world().all_reduce(losses, comm::ReduceOp::sum, {.label = "losses"}).wait();
    return losses;
  }
  const auto& pipeline = setup_.groups.along(Axis::pipeline);
  pipeline.broadcast(losses, place.pipeline_rank(last_stage), {.label = "losses"}).wait();
  return losses;
}

void PipelineEngine::optimizer_step(int64_t step, double factor) {
  // A skipped step does not advance the schedule.
  optimization_->set_learning_rate(factor * learning_rate_(step - optimization_->skipped()));
  setup_.before_step();
  const auto& trainer = setup_.options.trainer;
  optimization_->clip(*pipeline_, trainer.gradient_clip_val, trainer.gradient_clip_algorithm);
  optimization_->step(*pipeline_);
  share_whole_parameters();
  setup_.times.end(observe::Phase::optimizer);
}

void PipelineEngine::share_whole_parameters() {
  const auto& axis = setup_.groups.along(Axis::tensor);
  if (!setup_.replicas || axis.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : pipeline_->parameters()) {
    if (pipeline_->cut_of(parameter.name)) continue;
    axis.broadcast(parameter.tensor.detach(), 0, {.label = "whole parameters"}).wait();
  }
}

void PipelineEngine::synchronize_replicas() {
  pipeline_->synchronize_replicas();
  share_whole_parameters();
}

void PipelineEngine::fetch_states() {
  pipeline_->fetch_states();
  const auto& axis = setup_.groups.along(Axis::tensor);
  if (!setup_.replicas || axis.size() == 1) return;
  share_whole_parameters();
  for (const auto& state : optimization_->state()) {
    if (state.box) continue;
    axis.broadcast(state.second, 0, {.label = "states of whole parameters"}).wait();
  }
}

void PipelineEngine::make_whole() {
  synchronize_replicas();
  keeps_stages_ ? pipeline_->synchronize_replicas() : pipeline_->make_whole();
}

void PipelineEngine::try_to_make_whole() {
  if (!keeps_stages_) try_whole([this] { pipeline_->make_whole(); }, setup_.groups.world());
}

void PipelineEngine::evaluate(RunMode, const data::Batch& batch, Evaluation& sums) {
  const auto placed = placement_.place(batch);
  EvaluationSource source(setup_.task, placed, /*asks=*/true);
  pipeline_->evaluate(source, 1, [&](int, nn::Tensors outputs) {
    if (!finishes_outputs_) return;
    const nn::Autocast autocast(placement_.precision, placement_.device.type());
    setup_.task.finish_evaluation(std::move(outputs), source.is_loss(), placed, sums);
  });
}

void PipelineEngine::update_batch_norms(const data::Batch& batch) {
  const auto placed = placement_.place(batch);
  EvaluationSource source(setup_.task, placed, /*asks=*/false);
  pipeline_->update_batch_norms(source, 1);
}

at::Tensor PipelineEngine::predict(const data::Batch& batch) {
  const auto placed = placement_.place(batch);
  EvaluationSource source(setup_.task, placed, /*asks=*/false);
  at::Tensor result;
  pipeline_->evaluate(source, 1, [&](int, nn::Tensors outputs) {
    result = setup_.task.finish_prediction(std::move(outputs));
  });
  return result;
}

}  // namespace troika::train
