#include "troika/parallel/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/pairs.h"
#include "troika/nn/state.h"
#include "troika/parallel/pipeline/own_stages.h"
#include "troika/parallel/pipeline/pipeline_run.h"
#include "troika/parallel/pipeline/split_batch.h"

namespace troika::parallel {

using layout::Action;
using layout::ActionKind;

Pipeline::Pipeline(std::shared_ptr<nn::Model> model, const comm::MeshGroups& groups,
                   const PipelineOptions& options)
    : model_(std::move(model)),
      options_(options),
      world_(groups.world()),
      schedule_(passes_for(options, groups.mesh(), model_->blocks().size())),
      stages_(*model_, ends_for(*model_, options.cut, schedule_)),
      place_(groups.mesh(), world_.rank(), schedule_),
      times_(options.trace) {
  if (options.weights != layout::StageWeights::synchronous) refuse_shared_parameters();
  tensors_ = std::make_unique<StageTensors>(*model_, stages_, place_, options, groups);
  own_ = std::make_unique<OwnStages>(*model_, stages_, place_, options, groups, tensors_->tensor());
  if (tensors_->tensor()) tensors_->take_stepped(own_->parameters());
  schedule_ = layout::complete(schedule_, stages_.skips(), shards_parameters());
  reducer_ = make_reducer();
  // Exchanges use groups.data() during backward passes, which not every replica has in each step.
  // Without flushes, replicas run different numbers of passes in between.
  const bool is_synchronous = options.weights == layout::StageWeights::synchronous;
  batch_norms_ = std::make_unique<DeferredBatchNorm>(
      *model_, place_.shares_micro_batches() && is_synchronous ? *groups.data().split(0)
                                                               : comm::local::alone());
  messages_.training = std::make_unique<StageMessages>(make_messages(groups, schedule_));
  messages_.forward = std::make_unique<StageMessages>(make_messages(groups, forward_schedule()));
  if (!is_synchronous) make_asynchronous();
}

layout::Schedule Pipeline::forward_schedule() const {
  return layout::evaluation_schedule(schedule_, options_.micro_batches, stages_.skips());
}

c10::Device Pipeline::device() const {
  const auto parameters = model_->parameters();
  return parameters.empty() ? c10::Device(at::kCPU) : parameters.front().device();
}

StageMessages Pipeline::make_messages(const comm::MeshGroups& groups,
                                      const layout::Schedule& schedule) const {
  auto edges = layout::message_edges(schedule);
  std::vector<size_t> tensors;
  for (auto& edge : edges) {
    if (place_.shares_micro_batches() && options_.weights != layout::StageWeights::synchronous) {
      // A replica has no more micro-batches in flight, so that its sends never wait. Replicas may
      // be ahead of the order of the schedule, which has one replica of each stage.
      const auto order = layout::asynchronous_stage(asynchronous_pipeline(options_, place_.mesh()),
                                                    std::min(edge.from, edge.to));
      edge.depth = std::max(edge.depth, static_cast<int>(order.own_warm_up()) + 1);
    }
    const bool is_forward = edge.kind == ActionKind::send_activation;
    tensors.push_back(
        stages_.message(is_forward ? edge.from : edge.to, is_forward ? edge.to : edge.from).size());
  }
  // Uses a group of its own, because other objects may make edges in the world.
  return StageMessages(*groups.world().split(0, world_.rank()), std::move(edges),
                       std::move(tensors), options_.memory_format, device());
}

void Pipeline::zero_grad() {
  own_->for_each_part([](StagePart& part) {
    for (const auto& [name, parameter] : nn::named_parameters(*part.module)) {
      parameter.mutable_grad().reset();
    }
  });
}

PipelineRun Pipeline::make_run(MicroBatchSource& source, StageMessages& messages,
                               ActionTimes& times) {
  return PipelineRun({*model_, stages_, place_, messages,
                      [this](int stage) -> StagePasses& { return (*own_)[stage].passes; }, source,
                      options_.precision, device().type(), times});
}

std::vector<at::Tensor> Pipeline::run(MicroBatchSource& source, int begin, int end) {
  TROIKA_CHECK(0 <= begin && begin < end && end <= options_.micro_batches,
               "a step has micro-batches of its schedule");
  TROIKA_CHECK(!asynchronous_, "a pipeline without flushes has advance() in place of run()");
  start();
  std::vector<at::Tensor> losses(static_cast<size_t>(options_.micro_batches));
  const auto loss_of = [&](const Action& pass) -> at::Tensor& {
    return losses[static_cast<size_t>(pass.micro_batch)];
  };
  auto run = make_run(source, *messages_.training, times_);
  times_.begin_run();
  most_active_ = 0;
  // A schedule without some of its micro-batches is still complete and free of deadlock, because
  // the order of the others stays the same on each rank.
  const auto actions = layout::actions_between(place_.actions(schedule_), begin, end);
  own_->begin(actions, begin, end);
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto& action = actions[i];
    switch (action.kind) {
      case ActionKind::forward: {
        const DeferredBatchNorm::Counting counting(*batch_norms_);
        if (layout::begins_pair(actions, i)) {
          const auto& second = actions[++i];
          const auto both = run.train_forward(action, second, *tensors_->lanes());
          loss_of(action) = both[0];
          loss_of(second) = both[1];
        } else {
          loss_of(action) = run.train_forward(action);
        }
        most_active_ = std::max(most_active_, own_->active());
        break;
      }
      case ActionKind::backward:
      case ActionKind::backward_input: {
        const auto no_sync = own_->accumulate_but(i);
        const bool splits =
            action.kind == ActionKind::backward_input && (*own_)[action.stage].splits_backward;
        run.backward(action, splits);
        break;
      }
      case ActionKind::backward_weight: {
        if (!(*own_)[action.stage].splits_backward) break;  // with the input part
        const auto no_sync = own_->accumulate_but(i);
        run.backward_weight(action);
        break;
      }
      case ActionKind::send_activation:
      case ActionKind::send_gradient:
        run.send(action);
        break;
      case ActionKind::reduce: {
        const ActionTimes::ActionSpan span(times_, action);
        batch_norms_->update();
        own_->finish(action.stage);
        break;
      }
      case ActionKind::gather: {
        const ActionTimes::ActionSpan span(times_, action);
        own_->gather(action.stage);
        break;
      }
      case ActionKind::receive_activation:  // posted early, taken when the pass begins
      case ActionKind::receive_gradient:
      case ActionKind::step:  // step_by()
        break;
    }
  }
  messages_.training->finish();
  times_.end_run();
  own_->tied().sum_gradients();
  tensors_->finish_backward();
  is_running_ = false;
  return losses;
}

void Pipeline::start() {
  if (asynchronous_ && !asynchronous_->is_drained()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a pipeline has micro-batches in flight",
                 .got = "an evaluation between two drains",
                 .expected = "advance() and step() until the drain first"});
  }
  if (is_running_) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a pipeline goes on after an error",
                 .got = "a second call",
                 .expected = "a new Pipeline, made by all ranks"});
  }
  is_running_ = true;
}

at::Tensor Pipeline::run(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss) {
  if (const auto count = model_->input_names().size(); count != 1) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "this call is for a model with one input",
                 .got = fmt::format("{} inputs", count),
                 .expected = "run() with a MicroBatchSource"});
  }
  SplitBatch source(inputs, targets, options_.micro_batches, loss);
  const auto losses = run(source);
  const auto sum = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i].defined())
      sum.add_(losses[i].to(at::kDouble), source.weight(static_cast<int>(i)));
  }
  return sum;
}

void Pipeline::evaluate(MicroBatchSource& source, int micro_batches,
                        const std::function<void(int, nn::Tensors)>& done) {
  run_forward(source, micro_batches, /*updates_batch_norms=*/false, done);
}

void Pipeline::update_batch_norms(MicroBatchSource& source, int micro_batches) {
  if (place_.shares_micro_batches()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "each replica updates batch norms by micro-batches of its own",
                 .got = "stages with different numbers of replicas",
                 .expected = "as many replicas of each stage"});
  }
  run_forward(source, micro_batches, /*updates_batch_norms=*/true, [](int, const nn::Tensors&) {});
}

void Pipeline::run_forward(MicroBatchSource& source, int micro_batches, bool updates_batch_norms,
                           const std::function<void(int, nn::Tensors)>& done) {
  start();
  const at::NoGradGuard no_grad;
  gather_parameters();
  ActionTimes not_recorded;
  auto run = make_run(source, *messages_.forward, not_recorded);
  for (int first = 0; first < micro_batches; first += options_.micro_batches) {
    // The numbers of the source's micro-batches also decide which replica runs them.
    auto schedule = forward_schedule();
    for (auto& rank : schedule.ranks) {
      for (auto& action : rank) action.micro_batch += first;
      std::erase_if(rank,
                    [&](const Action& action) { return action.micro_batch >= micro_batches; });
    }
    for (const auto& action : place_.actions(schedule)) {
      if (action.kind == ActionKind::forward) {
        std::optional<DeferredBatchNorm::Counting> counting;
        if (updates_batch_norms) counting.emplace(*batch_norms_);
        auto outputs = run.forward(action.stage, action.micro_batch);
        if (updates_batch_norms) batch_norms_->update();
        if (!outputs.empty()) done(action.micro_batch, std::move(outputs));
      } else if (action.kind == ActionKind::send_activation) {
        run.send(action);
      }
    }
  }
  messages_.forward->finish();
  is_running_ = false;
}

}  // namespace troika::parallel
