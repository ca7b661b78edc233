#include "troika/train/engine/single_stage_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/base/random.h"
#include "troika/compat/module_members.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/offload.h"
#include "troika/nn/state.h"
#include "troika/observe/step_times.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/parallel/swarm/swarm_exchange.h"
#include "troika/train/engine/asynchronous_engine.h"
#include "troika/train/engine/make_exchange.h"
#include "troika/train/engine/make_offload.h"
#include "troika/train/engine/make_whole.h"
#include "troika/train/engine/measured_recompute.h"
#include "troika/train/engine/pipeline_engine.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/engine/sandblaster_engine.h"
#include "troika/train/engine/swarm_engine.h"
#include "troika/train/options/options.h"
#include "troika/train/task/step_error.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

using layout::ActionKind;

// Does what Module::zero_grad(true) does, without building lists of names.
void drop_gradients(const torch::nn::Module& module) {
  compat::for_each_member(module, [](const compat::ModuleMember& member) {
    const auto& tensor = member.tensor;
    // Skips the leaf check of Tensor::grad().
    if (tensor.defined() && !member.is_buffer && tensor.unsafeGetTensorImpl()->grad().defined()) {
      tensor.mutable_grad().reset();
    }
  });
}

}  // namespace

class SingleStageEngine::ActiveMicroBatch {
  std::optional<data::Batch> moved_;  // what `batch` refers to if the loaded one is not in place

 public:
  // `loaded` must outlive this object. It is copied only to move its tensors.
  ActiveMicroBatch(SingleStageEngine& engine, const data::Batch& loaded, int64_t step)
      : batch(engine.placement().is_placed(loaded)
                  ? loaded
                  : moved_.emplace(engine.placement().place(loaded))) {
    if (!batch.samples.empty()) draws_.emplace(engine.keys_of(batch, step));
  }

  const data::Batch& batch;  // on the compute device
  at::Tensor loss;
  std::optional<parallel::GradientSync::NoSync> no_sync;

 private:
  // Also active in the backward pass, where recomputation draws the masks again.
  std::optional<nn::KeyedDraws> draws_;
};

SingleStageEngine::SingleStageEngine(const EngineSetup& setup)
    : setup_(setup),
      evaluator_(setup.task, Placement::of(setup.options, setup.groups.world())),
      recipe_(setup.task.configure_optimizers(setup.options)),
      learning_rate_(recipe_, setup.plan, setup.steps, setup.global_batch) {
  const auto& plan = setup.plan;
  Task& task = setup.task;
  if (placement().device.is_cpu()) compat::keep_freed_memory();
  const bool cuts_layers = plan.mesh.size(layout::Axis::tensor) > 1;
  if (plan.exchange.zero_stage < 3 && !cuts_layers) task.make_values();
  const auto values = task.take_values();
  if (values) {
    placement().in_order().place(task.module(), *values);
  } else {
    placement().place(task.module());
  }
  const auto tensors = nn::named_state(task.module());
  counts_memory_ =
      placement().device.is_cpu() && compat::counts_tensor_memory() &&
      std::ranges::all_of(tensors, [&](const auto& entry) {
        return (values && values->has(entry.second)) || compat::is_counted(entry.second);
      });
  recompute_budget_ = layout::recompute_budget(plan.recompute);
  if (recompute_budget_) {
    task.blocks();
  } else if (plan.recompute == "none") {
    task.recompute({});
  } else {
    task.recompute(layout::recompute_plan(plan.recompute, task.blocks().blocks().size()));
  }
  if (!plan.offload.activations.empty()) {
    if (task.replicas() > 1) {
      throw Error("train", ErrorKind::usage,
                  {.what = "offload.activations is for processes that each train one replica",
                   .got = "strategy " + plan.strategy,
                   .expected = "ddp, or another strategy of processes"});
    }
    offload_ = make_offload(plan.offload.activations, placement().device);
    if (task.has_blocks()) {
      offloading_ = nn::offload(dynamic_cast<nn::Model&>(task.module()), std::move(offload_));
    }
  }
  // Averages of weights would not reach masters, which overwrite the weights.
  if (plan.exchange.method == layout::ExchangeMethod::local_steps && !placement().device.is_cpu() &&
      !steps_on_devices(recipe_)) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = "strategy " + plan.strategy + " averages weights between steps of single ranks",
         .got = "an optimizer that steps masters on the host",
         .expected = "one that steps on the device",
         .hint = "sgd, adam, adamw and adagrad do, without offload.optimizer"});
  }
  context_ = cut_samples(plan, task, setup.groups.along(layout::Axis::context));
  exchange_ =
      setup.quorum
          ? make_quorum_exchange(plan, setup.options, task.module(), *setup.quorum, setup.trace)
      : setup.swarm ? std::make_unique<parallel::SwarmExchange>(task.module(), *setup.swarm)
      : plan.trains_replicas()
          ? make_replica_exchange(plan, setup.options, recipe_, task, task.module(),
                                  setup.replicas
                                      ? *setup.replicas
                                      : parallel::ReplicaPlace::of_each(setup.groups.data()))
          : make_exchange(plan, setup.options, recipe_, task, setup.groups, setup.trace,
                          values.get());
  try {
    optimization_.emplace(placement().precision, *exchange_, recipe_,
                          CutTensors(*exchange_, task.module()));
  } catch (const Error&) {
    try_to_make_whole();
    throw;
  }
  state_.emplace(EngineParts{
      .plan = plan,
      .recipe = recipe_,
      .placement = placement(),
      .task = task,
      .stages = {{.key = kExchangePrefix, .module = task.module(), .exchange = *exchange_}},
      .store = *exchange_,
      .optimization = *optimization_,
      .learning_rate = learning_rate_});
}

std::shared_ptr<const nn::SampleKeys> SingleStageEngine::keys_of(const data::Batch& batch,
                                                                 int64_t step) {
  if (!keys_ || keys_.use_count() > 1) keys_ = std::make_shared<nn::SampleKeys>();
  const auto seed = static_cast<uint64_t>(setup_.options.run.seed);
  keys_->seed = mix(seed, static_cast<uint64_t>(step));
  keys_->samples = batch.samples;
  return keys_;
}

const layout::Schedule& SingleStageEngine::schedule_of(int64_t micro_batches) {
  if (std::exchange(scheduled_, micro_batches) != micro_batches) {
    schedule_ = layout::one_stage(static_cast<int>(micro_batches));
  }
  return schedule_;
}

StepResult SingleStageEngine::step(MicroBatches& batches) {
  TROIKA_CHECK(batches.begin() < batches.count(), "a step has micro-batches left");
  exchange_->begin_training();
  // A skipped step does not advance the schedule.
  exchange_->expect_rate(learning_rate_(batches.step() - optimization_->skipped()));
  StepResult result;
  const data::Batch* loaded = nullptr;
  std::optional<ActiveMicroBatch> active;
  const auto finish = [&] {
    if (counts_memory_) {
      result.peak_tensor_bytes = std::max(result.peak_tensor_bytes, memory::peak());
    }
    const at::Tensor loss = active->loss.variable_data();
    active.reset();
    batches.done(loss);
  };
  for (const auto& action : schedule_of(batches.count()).ranks.front()) {
    const bool is_last = action.micro_batch + 1 == batches.count();
    if (action.micro_batch >= 0 && action.micro_batch < batches.begin()) continue;
    if (action.kind == ActionKind::forward && !(loaded = batches.next())) return result;
    with_plain_errors(
        "training_step",
        [&] {
          switch (action.kind) {
            case ActionKind::forward:
              active.emplace(*this, *loaded, batches.step());
              return forward(*active, action.micro_batch == 0, is_last);
            case ActionKind::backward:
              return backward(*active);
            case ActionKind::reduce:
              exchange_->finish_backward();
              return setup_.times.end(observe::Phase::exposed_communication);
            case ActionKind::step:
              return optimizer_step(batches.step());
            default:
              TROIKA_CHECK(false, "one stage has no such action");
          }
        },
        loaded);
    if (action.kind == ActionKind::backward && !is_last) finish();
  }
  finish();
  result.is_complete = true;
  return result;
}

std::optional<std::pair<at::Tensor, int64_t>> SingleStageEngine::accumulate(MicroBatches& batches,
                                                                            bool is_first) {
  exchange_->begin_training();
  const auto* loaded = batches.next();
  if (!loaded) return std::nullopt;
  return with_plain_errors(
      "training_step",
      [&] {
        ActiveMicroBatch active(*this, *loaded, batches.step());
        forward(active, is_first, /*is_last=*/false);
        backward(active);
        return std::pair(active.loss.variable_data(), loaded->size());
      },
      loaded);
}

void SingleStageEngine::forward(ActiveMicroBatch& active, bool is_first, bool is_last) {
  if (recompute_budget_) plan_recomputation(active.batch);
  memory::restart_peak();
  if (is_first) drop_gradients(setup_.task.module());
  if (!is_last) active.no_sync.emplace(*exchange_);
  {
    std::optional<compat::SavedTensorGuard> saved;
    if (offload_) saved.emplace(*offload_);
    const nn::Autocast autocast(placement().precision, placement().device.type());
    active.loss = setup_.task.training_step(active.batch);
  }
  setup_.times.end(observe::Phase::forward);
}

void SingleStageEngine::plan_recomputation(const data::Batch& placed) {
  const int64_t budget = *std::exchange(recompute_budget_, std::nullopt);
  // Blocks are measured one by one, not in a forward pass, which would gather the parameters of
  // each.
  if (exchange_->shards_parameters()) exchange_->synchronize_replicas();
  setup_.task.recompute(
      measured_plan(setup_.task, placed, budget, placement(), setup_.groups.world()));
}

void SingleStageEngine::backward(const ActiveMicroBatch& active) {
  const auto& plan = setup_.plan;
  const bool is_averaged = plan.micro_batches > 1 && !plan.sums_micro_batches;
  const double factor = 1.0 / static_cast<double>(plan.micro_batches);
  optimization_->scaled(is_averaged ? active.loss * factor : active.loss).backward();
  setup_.times.end(observe::Phase::backward);
}

void SingleStageEngine::optimizer_step(int64_t step) {
  // A skipped step does not advance the schedule.
  optimization_->set_learning_rate(learning_rate_(step - optimization_->skipped()));
  setup_.before_step();
  const auto& trainer = setup_.options.trainer;
  optimization_->clip(*exchange_, trainer.gradient_clip_val, trainer.gradient_clip_algorithm);
  optimization_->step(*exchange_);
  setup_.times.end(observe::Phase::optimizer);
}

void SingleStageEngine::try_to_make_whole() {
  if (!exchange_->shards_parameters()) return;
  const auto make_whole = [this] {
    exchange_->spread_parameters();
    exchange_->make_whole();
  };
  try_whole(make_whole, setup_.groups.world());
}

std::unique_ptr<Engine> make_engine(const EngineSetup& setup) {
  if (parallel::lacks_tensors(setup.task.module())) {
    throw Error("train", ErrorKind::usage,
                {.what = "a run begins with a whole model",
                 .got = "the task of a pipeline's run, which has only this rank's stages",
                 .expected = "a new task, or one that was made with its values"});
  }
  if (setup.plan.is_asynchronous()) return std::make_unique<AsynchronousEngine>(setup);
  if (is_pipeline(setup.plan)) return std::make_unique<PipelineEngine>(setup);
  if (setup.plan.steps_on_all_samples()) return std::make_unique<SandblasterEngine>(setup);
  if (setup.swarm) return std::make_unique<SwarmEngine>(setup);
  return std::make_unique<SingleStageEngine>(setup);
}

}  // namespace troika::train
