#include "troika/parallel/pipeline/own_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/pipeline/stage_module.h"

namespace troika::parallel {

using layout::Action;
using layout::ActionKind;

namespace {

std::string name_of_tied(const TiedParameters::Shared& shared) {
  return "tied." + *shared.names.begin();
}

// Makes no calls of a group, so that all ranks throw this error and none sees another rank's end.
void require_unsharded_ties(const nn::Model& model, const StagesOfModel& stages,
                            const PipelinePlace& place, const PipelineOptions& options) {
  if (!options.shards_over_replicas || !place.shares_micro_batches()) return;
  const auto tied = tied_sets(model, stages, place);
  if (tied.empty()) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "a parameter that stages on several ranks use is sharded over replicas",
               .got = *tied.front().names.begin() + " on stages with different numbers of replicas",
               .expected = "as many replicas of each stage",
               .hint = "or a cut that keeps the parameter on one rank"});
}

// Makes no calls of a group, either.
void require_one_part(const nn::Model& model, const StagesOfModel& stages,
                      const PipelinePlace& place, const PipelineOptions& options) {
  const size_t own = place.own_stages().size();
  const auto tied = tied_sets(model, stages, place);
  if (!options.one_part || (own == 1 && tied.empty())) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "servers step one part of the model for each rank",
               .got = own > 1 ? fmt::format("{} stages on a rank", own)
                              : *tied.front().names.begin() + " in several stages",
               .expected = "one stage on each rank, and no parameter that several stages use"});
}

// Removes the parameters whose shards differ in size on the ranks of the tensor axis.
std::set<std::string> take_uneven(std::set<std::string>& names, const TensorParallel& tensor) {
  std::set<std::string> uneven;
  for (const auto& [cut, parameter] : tensor.parameters()) {
    if (tensor.has_uneven_shards(cut.name) && names.erase(cut.name) > 0) uneven.insert(cut.name);
  }
  return uneven;
}

}  // namespace

OwnStages::OwnStages(const nn::Model& model, const StagesOfModel& stages,
                     const PipelinePlace& place, const PipelineOptions& options,
                     const comm::MeshGroups& groups, const TensorParallel* tensor)
    : model_(model), of_model_(stages), place_(place) {
  require_unsharded_ties(model, stages, place, options);
  require_one_part(model, stages, place, options);
  tied_ = std::make_unique<TiedParameters>(model, stages, place, groups.world());
  std::set<std::string> seen;  // in an earlier stage of this rank
  for (const int stage : place.own_stages()) {
    stages_.push_back(std::make_unique<OwnStage>(OwnStage{stage, {model, stages[stage]}}));
    add_parts(*stages_.back(), options, groups.replicas(), tensor, seen);
  }
  // All ranks go through the sets in the same order, because they make groups.
  for (size_t i = 0; i < tied_->shared().size(); ++i) {
    const auto name = name_of_tied(tied_->shared()[i]);
    for_each_part([&](StagePart& part) {
      if (part.name == name) tied_->sum(i, *part.exchange);
    });
  }
}

void OwnStages::add_parts(OwnStage& stage, const PipelineOptions& options, const comm::Group& data,
                          const TensorParallel* tensor, std::set<std::string>& seen) {
  const auto& of_model = of_model_[stage.index];
  auto names = tensors_of_blocks(model_, of_model.begin, of_model.end);
  for (const auto& name : seen) stage.borrows_here |= names.erase(name) > 0;
  seen.insert(names.begin(), names.end());
  std::vector<size_t> sets;  // of tied parameters, first used by this stage
  for (size_t i = 0; i < tied_->shared().size(); ++i) {
    const auto& shared = tied_->shared()[i].names;
    if (!names.contains(*shared.begin())) continue;
    sets.push_back(i);
    for (const auto& name : shared) names.erase(name);
  }
  const auto add = [&](std::string name, const std::set<std::string>& tensors) {
    // Replicas may reduce the parts in different orders, so each part has a group of its own: a
    // replica without micro-batches in a step reduces a stage's first part first, the others the
    // part whose gradients are complete first.
    const auto group = *data.split(0);
    StagePart part{std::move(name), module_of(model_, tensors), {}};
    part.exchange = options.make_exchange ? options.make_exchange(*part.module, group)
                                          : std::make_unique<DataParallel>(*part.module, group);
    TROIKA_CHECK(options.shards_over_replicas || !part.exchange->has_shards(),
                 "PipelineOptions::shards_over_replicas is set");
    stage.parts.push_back(std::move(part));
  };
  std::set<std::string> uneven;
  if (tensor && options.shards_over_replicas) uneven = take_uneven(names, *tensor);
  add(fmt::format("stage.{}-{}", of_model.begin, of_model.end), names);
  if (!uneven.empty()) add(fmt::format("uneven.{}-{}", of_model.begin, of_model.end), uneven);
  for (const size_t i : sets) add(name_of_tied(tied_->shared()[i]), tied_->shared()[i].names);
}

OwnStage& OwnStages::operator[](int stage) {
  const auto found =
      std::ranges::find_if(stages_, [&](const auto& one) { return one->index == stage; });
  TROIKA_CHECK(found != stages_.end(), "the stage is on this rank");
  return **found;
}

void OwnStages::for_each_part(const std::function<void(StagePart&)>& visit) const {
  for (const auto& stage : stages_) {
    for (auto& part : stage->parts) visit(part);
  }
}

std::vector<optim::Parameter> OwnStages::parameters() const {
  std::vector<optim::Parameter> result;
  for_each_part([&](StagePart& part) {
    for (auto& parameter : part.exchange->parameters()) result.push_back(std::move(parameter));
  });
  return result;
}

size_t OwnStages::active() const {
  size_t sum = 0;
  for (const auto& stage : stages_) sum += stage->passes.active();
  return sum;
}

void OwnStages::begin(const std::vector<Action>& actions, int begin, int end) {
  plan_backward(actions);
  if (own_replicas() == 1) return;
  // Gradients from before `begin`, if any, are on the first replica.
  std::set<int> active;
  if (begin > 0) active.insert(0);
  for (int i = begin; i < end; ++i) active.insert(i % own_replicas());
  weigh(active);
}

int OwnStages::own_replicas() const {
  if (!place_.shares_micro_batches()) return 1;
  return static_cast<int>(place_.replicas(stages_.front()->index).size());
}

void OwnStages::share(int64_t begin, int64_t end) {
  const int replicas = own_replicas();
  if (replicas == 1) return;
  std::set<int> active;
  for (int64_t i = begin; i < std::min(end, begin + replicas); ++i) {
    active.insert(static_cast<int>(i % replicas));
  }
  weigh(active);
}

void OwnStages::weigh(const std::set<int>& active) {
  summed_replicas_ = static_cast<int>(active.size());
  if (summed_replicas_ == own_replicas()) return;
  const double weight = active.contains(place_.replica()) ? 1 : 0;
  for_each_part([&](StagePart& part) { part.exchange->begin_step(weight); });
}

// A stage with a parameter of an earlier stage here is not split, because that stage's exchange
// must have all gradients by the end of its last backward pass.
void OwnStages::plan_backward(const std::vector<Action>& actions) {
  for (const auto& stage : stages_) {
    stage->splits_backward =
        !stage->borrows_here && can_split_backward(model_, of_model_[stage->index]);
  }
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto kind = actions[i].kind;
    const bool is_input_part = kind == ActionKind::backward_input;
    if (!is_input_part && kind != ActionKind::backward && kind != ActionKind::backward_weight) {
      continue;
    }
    auto& stage = (*this)[actions[i].stage];
    const bool makes_gradients =
        kind == ActionKind::backward || is_input_part != stage.splits_backward;
    if (makes_gradients) stage.last_backward = i;
  }
}

std::deque<GradientSync::NoSync> OwnStages::accumulate_but(size_t action) const {
  std::deque<GradientSync::NoSync> result;
  for (const auto& stage : stages_) {
    if (stage->last_backward == action) continue;
    for (auto& part : stage->parts) result.emplace_back(*part.exchange);
  }
  return result;
}

std::deque<GradientSync::NoSync> OwnStages::accumulate() const {
  std::deque<GradientSync::NoSync> result;
  for_each_part([&](StagePart& part) { result.emplace_back(*part.exchange); });
  return result;
}

void OwnStages::gather(int stage) {
  for (auto& part : (*this)[stage].parts) part.exchange->gather_parameters();
}

void OwnStages::finish(int stage) {
  const at::NoGradGuard no_grad;
  for (auto& part : (*this)[stage].parts) {
    part.exchange->finish_backward();
    // Each replica has run a part of the step's micro-batches, so their gradients are summed, not
    // averaged.
    if (!place_.shares_micro_batches() || summed_replicas_ == 1) continue;
    for (const auto& gradient : part.exchange->gradients()) {
      gradient.mul_(static_cast<double>(summed_replicas_));
    }
  }
}

}  // namespace troika::parallel
