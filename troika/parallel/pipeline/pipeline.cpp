#include "troika/parallel/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/complete.h"
#include "troika/nn/state.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/pipeline/pipeline_run.h"
#include "troika/parallel/pipeline/split_batch.h"
#include "troika/parallel/pipeline/stage_module.h"

namespace troika::parallel {

using layout::Action;
using layout::ActionKind;

struct Pipeline::OwnStage {
  int index;
  StagePasses passes;
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<Exchange> exchange;
  bool borrows_here = false;     // with an earlier stage of this rank
  bool splits_backward = false;  // in this run
  size_t last_backward = 0;      // index of the action that completes the stage's gradients
};

// Replicas hold the same numbers, so only the first of them counts.
class Pipeline::OverStages : public GroupReducer {
 public:
  OverStages(const Pipeline& pipeline) : pipeline_(pipeline) {}

  void sum(const at::Tensor& numbers, std::string_view label) const override {
    inner().sum(numbers, label);
    if (pipeline_.place_.replica() > 0) numbers.zero_();
    pipeline_.world_.all_reduce(numbers, comm::ReduceOp::sum, {.label = label}).wait();
  }
  void max(const at::Tensor& numbers, std::string_view label) const override {
    inner().max(numbers, label);
    pipeline_.world_.all_reduce(numbers, comm::ReduceOp::max, {.label = label}).wait();
  }

 private:
  const GroupReducer& inner() const { return pipeline_.own_.front()->exchange->reducer(); }

  const Pipeline& pipeline_;
};

Pipeline::Pipeline(std::shared_ptr<nn::Model> model, const comm::MeshGroups& groups,
                   const PipelineOptions& options)
    : model_(std::move(model)),
      options_(options),
      world_(groups.world()),
      schedule_(passes_for(options, groups.mesh(), model_->blocks().size())),
      stages_(*model_, ends_for(*model_, options.cut, schedule_)),
      place_(groups.mesh(), world_.rank(), schedule_) {
  schedule_ = layout::complete(schedule_, stages_.skips());
  actions_ = place_.actions(schedule_);
  for (const int stage : place_.own_stages()) {
    own_.push_back(std::make_unique<OwnStage>(OwnStage{stage, {*model_, stages_[stage]}, {}, {}}));
  }
  tied_ = std::make_unique<TiedParameters>(*model_, stages_, place_, world_);
  std::set<std::string> seen;  // in an earlier stage of this rank
  for (const auto& stage : own_) {
    const auto& of_model = stages_[stage->index];
    for (size_t i = of_model.begin; i < of_model.end; ++i) {
      const auto& block = model_->blocks()[i];
      const auto owned = model_->owned_state(block);
      stage->borrows_here |=
          std::ranges::any_of(block.borrows,
                              [&](const auto& name) { return seen.contains(name); }) ||
          std::ranges::any_of(owned, [&](const auto& one) { return seen.contains(one.first); });
    }
    stage->module = stage_module(*model_, of_model.begin, of_model.end, seen);
    for (const auto& name : nn::named_state(*stage->module)) seen.insert(name.first);
    stage->exchange = options.make_exchange
                          ? options.make_exchange(*stage->module, groups.data())
                          : std::make_unique<DataParallel>(*stage->module, groups.data());
  }
  if (tied_->any() && own_.front()->exchange->has_shards()) {
    throw Error(
        "parallel", ErrorKind::usage,
        {.what = "a parameter that stages on several ranks use is not sharded over replicas",
         .got = "an exchange with shards",
         .expected = "a DataParallel, or a cut that keeps the parameter on one rank"});
  }
  reducer_ = std::make_unique<OverStages>(*this);
  batch_norms_ = std::make_unique<DeferredBatchNorm>(*model_);
  messages_ = std::make_unique<StageMessages>(make_messages(groups, schedule_));
  forward_messages_ = std::make_unique<StageMessages>(make_messages(groups, forward_schedule()));
}

Pipeline::~Pipeline() = default;

layout::Schedule Pipeline::forward_schedule() const {
  return layout::evaluation_schedule(schedule_, options_.micro_batches, stages_.skips());
}

Pipeline::OwnStage& Pipeline::own(int stage) {
  const auto found =
      std::ranges::find_if(own_, [&](const auto& one) { return one->index == stage; });
  TROIKA_CHECK(found != own_.end(), "the stage is on this rank");
  return **found;
}

StageMessages Pipeline::make_messages(const comm::MeshGroups& groups,
                                      const layout::Schedule& schedule) const {
  auto edges = layout::message_edges(schedule);
  std::vector<size_t> tensors;
  for (const auto& edge : edges) {
    const bool is_forward = edge.kind == ActionKind::send_activation;
    tensors.push_back(
        stages_.message(is_forward ? edge.from : edge.to, is_forward ? edge.to : edge.from).size());
  }
  // Uses a group of its own, because other objects may make edges in the world.
  return StageMessages(*groups.world().split(0, world_.rank()), std::move(edges),
                       std::move(tensors), options_.memory_format);
}

void Pipeline::zero_grad() {
  for (const auto& stage : own_) {
    for (const auto& [name, parameter] : nn::named_parameters(*stage->module)) {
      parameter.mutable_grad().reset();
    }
  }
}

PipelineRun Pipeline::make_run(MicroBatchSource& source, StageMessages& messages) {
  const auto parameters = model_->parameters();
  return PipelineRun({*model_, stages_, place_, messages,
                      [this](int stage) -> StagePasses& { return own(stage).passes; }, source,
                      options_.precision,
                      parameters.empty() ? at::kCPU : parameters.front().device().type()});
}

std::vector<at::Tensor> Pipeline::run(MicroBatchSource& source, int begin, int end) {
  TROIKA_CHECK(0 <= begin && begin < end && end <= options_.micro_batches,
               "a step has micro-batches of its schedule");
  start();
  std::vector<at::Tensor> losses(static_cast<size_t>(options_.micro_batches));
  auto run = make_run(source, *messages_);
  most_active_ = 0;
  // A schedule without some of its micro-batches is still complete and free of deadlock, because
  // the order of the others stays the same on each rank.
  auto actions = actions_;
  std::erase_if(actions, [&](const Action& action) {
    return action.micro_batch >= 0 && (action.micro_batch < begin || action.micro_batch >= end);
  });
  plan_backward(actions);
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto& action = actions[i];
    switch (action.kind) {
      case ActionKind::forward: {
        const DeferredBatchNorm::Counting counting(*batch_norms_);
        if (action.stage + 1 == static_cast<int>(stages_.size())) {
          losses[static_cast<size_t>(action.micro_batch)] =
              run.forward_with_loss(action.micro_batch);
        } else {
          run.forward(action.stage, action.micro_batch);
        }
        most_active_ = std::max(most_active_, active());
        break;
      }
      case ActionKind::backward:
      case ActionKind::backward_input: {
        const auto no_sync = accumulate_but(i);
        const bool splits =
            action.kind == ActionKind::backward_input && own(action.stage).splits_backward;
        run.backward(action.stage, action.micro_batch, splits);
        break;
      }
      case ActionKind::backward_weight: {
        if (!own(action.stage).splits_backward) break;  // with the input part
        const auto no_sync = accumulate_but(i);
        run.backward_weight(action.stage, action.micro_batch);
        break;
      }
      case ActionKind::send_activation:
      case ActionKind::send_gradient:
        run.send(action);
        break;
      case ActionKind::reduce:
        batch_norms_->update();
        finish_stage(own(action.stage));
        break;
      case ActionKind::receive_activation:  // posted early, taken when the pass begins
      case ActionKind::receive_gradient:
      case ActionKind::gather:
      case ActionKind::step:  // step_by()
        break;
    }
  }
  messages_->finish();
  tied_->sum_gradients();
  is_running_ = false;
  return losses;
}

// A stage without inputs that have gradients computes all of its gradients at once. So does the
// stage of an output layer, whose loss goes backward only once (linear_cross_entropy.h), a stage
// with a parameter of an earlier stage here, whose exchange must have all gradients by the end of
// that stage's last backward pass, and a model whose blocks are recomputed, which would be computed
// for each part.
void Pipeline::plan_backward(const std::vector<Action>& actions) {
  const bool recomputes = model_->has_wrapper(nn::WrapperKind::recompute);
  const auto is_output_layer = [&](int stage) {
    return model_->has_output_layer() && stages_[stage].end == model_->blocks().size();
  };
  for (const auto& stage : own_) {
    stage->splits_backward =
        !recomputes && !stage->borrows_here && !is_output_layer(stage->index) &&
        std::ranges::any_of(stages_[stage->index].takes, &StageInput::is_trained);
  }
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto kind = actions[i].kind;
    const bool is_input_part = kind == ActionKind::backward_input;
    if (!is_input_part && kind != ActionKind::backward && kind != ActionKind::backward_weight) {
      continue;
    }
    auto& stage = own(actions[i].stage);
    const bool makes_gradients =
        kind == ActionKind::backward || is_input_part != stage.splits_backward;
    if (makes_gradients) stage.last_backward = i;
  }
}

// Lets all exchanges of this rank only accumulate, except for the exchange of the stage whose
// gradients the action completes. Other stages are included because the pass may add to a parameter
// that its stage shares with another stage of this rank.
std::deque<GradientSync::NoSync> Pipeline::accumulate_but(size_t action) {
  std::deque<GradientSync::NoSync> result;
  for (const auto& stage : own_) {
    if (stage->last_backward != action) result.emplace_back(*stage->exchange);
  }
  return result;
}

void Pipeline::start() {
  if (is_running_) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a pipeline goes on after an error",
                 .got = "a second call",
                 .expected = "a new Pipeline, made by all ranks"});
  }
  is_running_ = true;
}

void Pipeline::finish_stage(OwnStage& stage) {
  stage.exchange->finish_backward();
  // Each replica has run a part of the step's micro-batches, so their gradients are summed, not
  // averaged.
  const auto replicas = place_.replicas(stage.index).size();
  if (!place_.shares_micro_batches() || replicas == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& gradient : stage.exchange->gradients()) {
    gradient.mul_(static_cast<double>(replicas));
  }
}

size_t Pipeline::active() const {
  size_t sum = 0;
  for (const auto& stage : own_) sum += stage->passes.active();
  return sum;
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
  start();
  const at::NoGradGuard no_grad;
  auto run = make_run(source, *forward_messages_);
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
        auto outputs = run.forward(action.stage, action.micro_batch);
        if (!outputs.empty()) done(action.micro_batch, std::move(outputs));
      } else if (action.kind == ActionKind::send_activation) {
        run.send(action);
      }
    }
  }
  forward_messages_->finish();
  is_running_ = false;
}

std::vector<optim::Parameter> Pipeline::parameters() const {
  std::vector<optim::Parameter> result;
  for (const auto& stage : own_) {
    for (auto& parameter : stage->exchange->parameters()) result.push_back(std::move(parameter));
  }
  return result;
}

std::vector<at::Tensor> Pipeline::gradients() const {
  std::vector<at::Tensor> result;
  for (const auto& stage : own_) {
    for (auto& gradient : stage->exchange->gradients()) result.push_back(std::move(gradient));
  }
  return result;
}

std::vector<at::Tensor> Pipeline::counted_gradients() const {
  if (tied_->borrowed().empty()) return gradients();
  std::vector<at::Tensor> result;
  for (const auto& parameter : parameters()) {
    const auto& gradient = parameter.tensor.grad();
    if (gradient.defined() && !tied_->borrowed().contains(parameter.name)) {
      result.push_back(gradient);
    }
  }
  return result;
}

const GroupReducer& Pipeline::reducer() const {
  return *reducer_;
}

const GroupReducer& Pipeline::shards_reducer() const {
  return own_.front()->exchange->reducer();
}

std::vector<Pipeline::StageExchange> Pipeline::stage_exchanges() const {
  std::vector<StageExchange> result;
  for (const auto& stage : own_) {
    const auto& of_model = stages_[stage->index];
    result.push_back({of_model.begin, of_model.end, *stage->module, *stage->exchange});
  }
  return result;
}

void Pipeline::step_by(const std::function<void()>& update) {
  // The exchange of each stage updates its own parameters in the module after the single update.
  std::function<void()> step = update;
  for (const auto& stage : own_) {
    step = [exchange = stage->exchange.get(), inner = std::move(step)] {
      exchange->step_by(inner);
    };
  }
  step();
}

void Pipeline::synchronize_replicas() {
  for (const auto& stage : own_) stage->exchange->synchronize_replicas();
}

}  // namespace troika::parallel
