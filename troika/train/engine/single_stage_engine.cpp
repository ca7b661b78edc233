#include "troika/train/engine/single_stage_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
#include "troika/parallel/swarm/swarm_member.h"
#include "troika/train/engine/asynchronous_engine.h"
#include "troika/train/engine/delayed_swarm_engine.h"
#include "troika/train/engine/local_swarm_engine.h"
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
  // `given` must outlive this object. It is copied only to move its tensors.
  ActiveMicroBatch(SingleStageEngine& engine, const data::Batch& given, int64_t step)
      : batch(engine.placement().is_placed(given)
                  ? given
                  : moved_.emplace(engine.placement().place(given))),
        loaded(given) {
    if (!batch.samples.empty()) keys_ = engine.keys_of(batch, step);
  }

  // Draws the masks of the micro-batch on this thread during its lifetime. A backward pass draws,
  // too, where it recomputes.
  class Draws {
   public:
    explicit Draws(const ActiveMicroBatch& active) {
      if (active.keys_) draws_.emplace(active.keys_);
    }

   private:
    std::optional<nn::KeyedDraws> draws_;
  };

  const data::Batch& batch;   // on the compute device
  const data::Batch& loaded;  // for errors
  at::Tensor loss;

 private:
  std::shared_ptr<const nn::SampleKeys> keys_;
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
      : setup.swarm ? make_swarm_exchange(plan, task.module(), *setup.swarm, setup.trace)
      : plan.trains_replicas()
          ? make_replica_exchange(plan, setup.options, recipe_, task, task.module(),
                                  setup.replicas
                                      ? *setup.replicas
                                      : parallel::ReplicaPlace::of_each(setup.groups.data()))
          : make_exchange(plan, setup.options, recipe_, task, setup.groups, setup.trace,
                          values.get());
  if (plan.stages.tensor_overlap) lanes_.emplace(placement().device, setup.trace);
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
  const auto actions = static_cast<size_t>(2 * micro_batches + 2);
  if (schedule_.ranks.empty() || schedule_.ranks.front().size() != actions) {
    schedule_ = layout::one_stage(static_cast<int>(micro_batches), lanes_ ? 2 : 1);
  }
  return schedule_;
}

StepResult SingleStageEngine::step(MicroBatches& batches) {
  TROIKA_CHECK(batches.begin() < batches.count(), "a step has micro-batches left");
  exchange_->begin_training();
  // A skipped step does not advance the schedule.
  const double rate = learning_rate_(batches.step() - optimization_->skipped());
  exchange_->expect_rate(rate / optimization_->loss_scale().value_or(1));
  StepResult result;
  std::array<std::optional<ActiveMicroBatch>, 2> active;  // by the number's last bit
  const auto of = [&](int micro_batch) -> std::optional<ActiveMicroBatch>& {
    return active.at(static_cast<size_t>(micro_batch % 2));
  };
  const auto finish = [&](int micro_batch) {
    if (counts_memory_) {
      result.peak_tensor_bytes = std::max(result.peak_tensor_bytes, memory::peak());
    }
    const at::Tensor loss = of(micro_batch)->loss.variable_data();
    of(micro_batch).reset();
    batches.done(loss);
  };
  const data::Batch* loaded = nullptr;
  const auto& actions = schedule_of(batches.count()).ranks.front();
  const auto last = static_cast<int>(batches.count()) - 1;
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto kind = actions[i].kind;
    const int number = actions[i].micro_batch;
    if (number >= 0 && number < batches.begin()) continue;
    if (kind == ActionKind::forward && !(loaded = batches.next())) return result;
    with_plain_errors(
        "training_step",
        [&] {
          switch (kind) {
            case ActionKind::forward: {
              auto& own = of(number).emplace(*this, *loaded, batches.step());
              if (actions[i + 1].kind == ActionKind::forward) return;  // they run together
              auto& before = of(number + 1);
              return before ? forward(*before, &own, number == 1)
                            : forward(own, nullptr, number == 0);
            }
            case ActionKind::backward:
              return backward(*of(number), number == last);
            case ActionKind::reduce:
              exchange_->finish_backward();
              return setup_.times.end(observe::Phase::exposed_communication);
            case ActionKind::step:
              return optimizer_step(batches.step());
            default:
              TROIKA_CHECK(false, "one stage has no such action");
          }
        },
        kind == ActionKind::backward ? &of(number)->loaded : loaded);
    if (kind == ActionKind::backward && number != last) finish(number);
  }
  finish(last);
  result.is_complete = true;
  return result;
}

std::optional<std::pair<at::Tensor, int64_t>> SingleStageEngine::accumulate(MicroBatches& batches,
                                                                            bool is_first) {
  const auto* loaded = batches.next();
  if (!loaded) return std::nullopt;
  // After the hooks of next(), which may save the state.
  exchange_->begin_training();
  return with_plain_errors(
      "training_step",
      [&] {
        ActiveMicroBatch active(*this, *loaded, batches.step());
        forward(active, nullptr, is_first);
        backward(active, /*is_last=*/false);
        return std::pair(active.loss.variable_data(), loaded->size());
      },
      loaded);
}

void SingleStageEngine::forward(ActiveMicroBatch& first, ActiveMicroBatch* second, bool is_first) {
  if (recompute_budget_) plan_recomputation(first.batch);
  memory::restart_peak();
  if (is_first) drop_gradients(setup_.task.module());
  if (second) {
    lanes_->run([&] { run_forward(first); }, [&] { run_forward(*second); });
  } else {
    run_forward(first);
  }
  setup_.times.end(observe::Phase::forward);
}

void SingleStageEngine::run_forward(ActiveMicroBatch& active) {
  const ActiveMicroBatch::Draws draws(active);
  std::optional<compat::SavedTensorGuard> saved;
  if (offload_) saved.emplace(*offload_);
  const nn::Autocast autocast(placement().precision, placement().device.type());
  with_plain_errors(
      "training_step", [&] { active.loss = setup_.task.training_step(active.batch); },
      &active.loaded);
}

void SingleStageEngine::plan_recomputation(const data::Batch& placed) {
  const int64_t budget = *std::exchange(recompute_budget_, std::nullopt);
  // Blocks are measured one by one, not in a forward pass, which would gather the parameters of
  // each.
  if (exchange_->shards_parameters()) exchange_->synchronize_replicas();
  setup_.task.recompute(
      measured_plan(setup_.task, placed, budget, placement(), setup_.groups.world()));
}

void SingleStageEngine::backward(const ActiveMicroBatch& active, bool is_last) {
  const auto& plan = setup_.plan;
  const ActiveMicroBatch::Draws draws(active);
  std::optional<parallel::GradientSync::NoSync> no_sync;
  if (!is_last) no_sync.emplace(*exchange_);
  const bool is_averaged = plan.micro_batches > 1 && !plan.sums_micro_batches;
  const double factor = 1.0 / static_cast<double>(plan.micro_batches);
  optimization_->scaled(is_averaged ? active.loss * factor : active.loss).backward();
  setup_.times.end(observe::Phase::backward);
}

void SingleStageEngine::update_batch_norms(const data::Batch& batch) {
  setup_.task.training_step(placement().place(batch));
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
  if (setup.swarm && setup.plan.exchange.outer.is_on) {
    return std::make_unique<LocalSwarmEngine>(setup);
  }
  if (setup.swarm && setup.swarm->delays()) return std::make_unique<DelayedSwarmEngine>(setup);
  if (setup.swarm) return std::make_unique<SwarmEngine>(setup);
  return std::make_unique<SingleStageEngine>(setup);
}

}  // namespace troika::train
