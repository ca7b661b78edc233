#include "troika/train/memory/pipeline_memory.h"

#include <algorithm>
#include <set>
#include <string>

#include "troika/base/error.h"
#include "troika/comm/messages/parcel.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/pairs.h"
#include "troika/nn/state.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/parallel/pipeline/stage_passes.h"
#include "troika/train/engine/pipeline_plan.h"

namespace troika::train {

using layout::Action;
using layout::ActionKind;

namespace {

layout::Schedule passes_of(const nn::Model& model, const layout::Plan& plan) {
  return parallel::passes_for(pipeline_options(plan), plan.mesh, model.blocks().size());
}

}  // namespace

PipelineShapes::PipelineShapes(const nn::Model& model, const layout::Plan& plan)
    : model_(model),
      mesh_(plan.mesh),
      schedule_(passes_of(model, plan)),
      stages_(model, parallel::ends_for(model, plan.stages.cut, schedule_)),
      place_(plan.mesh, 0, schedule_) {
  for (int rank = 0; plan.is_asynchronous() && rank < pipeline_ranks(); ++rank) {
    orders_.push_back(layout::asynchronous_stage(plan.asynchronous(), rank));
  }
  schedule_ = layout::complete(schedule_, stages_.skips(), plan.exchange.zero_stage == 3);
  ranks_ = layout::Inventory(schedule_).rank_of;
  edges_ = layout::message_edges(schedule_);
  evaluation_edges_ = layout::message_edges(layout::evaluation_schedule(
      schedule_, static_cast<int>(plan.micro_batches), stages_.skips()));
}

layout::StageEnds PipelineShapes::ends() const {
  layout::StageEnds result;
  for (int s = 0; s < static_cast<int>(stages_.size()); ++s) result.push_back(stages_[s].end);
  return result;
}

std::vector<int> PipelineShapes::stages_of(int pipeline_rank) const {
  std::vector<int> result;
  for (size_t s = 0; s < ranks_.size(); ++s) {
    if (ranks_[s] == pipeline_rank) result.push_back(static_cast<int>(s));
  }
  return result;
}

std::vector<Action> PipelineShapes::actions_of(int pipeline_rank) const {
  const auto& all = schedule_.ranks[static_cast<size_t>(pipeline_rank)];
  if (!mesh_.has_uneven_stages()) return all;
  return layout::actions_of_replica(all, 0, mesh_.replicas(pipeline_rank));
}

bool PipelineShapes::ends_step(int pipeline_rank, int micro_batch) const {
  if (orders_.empty()) return false;
  const auto& order = orders_[static_cast<size_t>(pipeline_rank)];
  return micro_batch / order.micro_batches != (micro_batch + order.replicas) / order.micro_batches;
}

std::vector<bool> PipelineShapes::splits() const {
  std::vector<bool> result(stages_.size(), false);
  for (int rank = 0; rank < pipeline_ranks(); ++rank) {
    std::set<std::string> seen;  // in an earlier stage of the rank
    for (const int s : stages_of(rank)) {
      bool borrows_here = false;
      for (const auto& name :
           parallel::tensors_of_blocks(model_, stages_[s].begin, stages_[s].end)) {
        borrows_here |= !seen.insert(name).second;
      }
      const auto actions = actions_of(rank);
      const bool has_parts = std::ranges::any_of(actions, [&](const Action& action) {
        return action.kind == ActionKind::backward_input && action.stage == s;
      });
      result[static_cast<size_t>(s)] =
          has_parts && !borrows_here && parallel::can_split_backward(model_, stages_[s]);
    }
  }
  return result;
}

int PipelineShapes::depth(ActionKind send, int from, int to, bool evaluates) const {
  for (const auto& edge : evaluates ? evaluation_edges_ : edges_) {
    if (edge.kind != send || edge.from != from || edge.to != to) continue;
    if (orders_.empty() || !mesh_.has_uneven_stages()) return std::max(1, edge.depth);
    // As parallel::Pipeline makes them.
    const auto& order = orders_[static_cast<size_t>(rank_of(std::min(from, to)))];
    return std::max(edge.depth, static_cast<int>(order.own_warm_up()) + 1);
  }
  TROIKA_CHECK(false, "the schedule has the edge");
}

PipelineMemory::PipelineMemory(const PipelineShapes& shapes, int pipeline_rank,
                               const std::vector<StageMemory>& stages, RankExchanges& own,
                               bool keeps_sent)
    : shapes_(shapes),
      pipeline_rank_(pipeline_rank),
      own_stages_(shapes.stages_of(pipeline_rank)),
      stages_(stages),
      own_(own),
      keeps_sent_(keeps_sent),
      actions_(shapes.actions_of(pipeline_rank)) {
  for (size_t i = 0; i < actions_.size(); ++i) {
    const auto kind = actions_[i].kind;
    const bool is_split = !memory(actions_[i].stage).backward_weight.empty();
    const bool ends = kind == ActionKind::backward ||
                      kind == (is_split ? ActionKind::backward_weight : ActionKind::backward_input);
    if (ends) last_backward_[actions_[i].stage] = i;
  }
}

plan::ReceiveBuffers& PipelineMemory::buffers(ActionKind send, int from, const Action& action,
                                              size_t tensor, double bytes) {
  static_assert(plan::kInlinedBytes == comm::kInlineBytes);
  const int to = action.stage, replica = action.micro_batch % shapes_.sharing(from);
  const Edge edge{send, from, replica, to, tensor};
  return buffers_.try_emplace(edge, bytes, shapes_.depth(send, from, to)).first->second;
}

void PipelineMemory::step(bool after_validation, const Observer& observe) {
  observe_ = observe;
  kept_.clear();
  own_gradients_.clear();
  sent_.clear();
  for (auto& part : own_.parts) {
    part.memory.begin_pass();
    if (after_validation) part.memory.gather();
  }
  for (now_ = 0; now_ < actions_.size(); ++now_) {
    const auto& action = actions_[now_];
    const bool is_split = !memory(action.stage).backward_weight.empty();
    switch (action.kind) {
      case ActionKind::forward:
        forward(action);
        break;
      case ActionKind::backward:
        backward(action, false);
        if (shapes_.ends_step(pipeline_rank_, action.micro_batch)) end_step();
        break;
      case ActionKind::backward_input:
        backward(action, is_split);
        break;
      case ActionKind::backward_weight:
        if (is_split) backward_weight(action);
        break;
      case ActionKind::send_gradient: {
        double bytes = 0;
        const int to = layout::peer_stage(action);
        const auto& takes = shapes_.stages()[action.stage].takes;
        for (size_t i = 0; i < takes.size(); ++i) {
          if (takes[i].from == to) bytes += memory(action.stage).gradients[i];
        }
        own_gradients_.erase({action.stage, to, action.micro_batch});
        if (keeps_sent_) sent_[{action.stage, to}] = bytes;
        break;
      }
      case ActionKind::gather:
        for (auto& part : own_.parts) {
          if (part.stage == action.stage) part.memory.gather();
        }
        break;
      case ActionKind::reduce:
        for (auto& part : own_.parts) {
          if (part.stage == action.stage) part.memory.finish();
        }
        break;
      default:
        break;
    }
  }
}

void PipelineMemory::end_step() {
  for (auto& part : own_.parts) {
    part.memory.finish();
    part.memory.begin_pass();
  }
}

// Two passes that run at the same time receive their inputs together. The first one ends its
// computation beside nearly all that the second one keeps.
void PipelineMemory::forward(const Action& action) {
  const int stage = action.stage;
  const Pass pass{stage, action.micro_batch};
  if (!kept_.contains(pass)) receive_activations(action);
  if (layout::begins_pair(actions_, now_)) {
    const auto& second = actions_[now_ + 1];
    receive_activations(second);
    kept_[{stage, second.micro_batch}] = memory(stage).kept;
  }
  report(stage, memory(stage).forward_peak, kept_by_others(pass));
  kept_[pass] = memory(stage).kept;
}

void PipelineMemory::receive_activations(const Action& action) {
  const int stage = action.stage;
  const auto& takes = shapes_.stages()[stage].takes;
  std::map<int, size_t> next;
  for (size_t i = 0; i < takes.size(); ++i) {
    const int from = takes[i].from;
    if (from == parallel::StageInput::kBatch) continue;
    const size_t tensor = next[from]++;
    if (!is_here(from)) {
      buffers(ActionKind::send_activation, from, action, tensor, memory(stage).taken[i]).receive();
    }
  }
}

void PipelineMemory::receive_gradients(const Action& action) {
  const int stage = action.stage;
  const auto& gives = shapes_.stages()[stage].gives;
  for (int from = stage + 1; from < static_cast<int>(shapes_.stages().size()); ++from) {
    if (is_here(from)) continue;
    size_t tensor = 0;
    for (const auto& input : shapes_.stages().message(stage, from)) {
      const auto output = std::ranges::find(gives, input.slot) - gives.begin();
      const double bytes = memory(stage).given_gradients[static_cast<size_t>(output)];
      if (!input.is_trained || bytes == 0) continue;
      buffers(ActionKind::send_gradient, from, action, tensor++, bytes).receive();
    }
  }
}

void PipelineMemory::backward(const Action& action, bool splits) {
  const int stage = action.stage;
  const auto& of_stage = memory(stage);
  receive_gradients(action);
  follow(action, of_stage.backward);
  const Pass pass{stage, action.micro_batch};
  double of_inputs = 0;
  const auto& takes = shapes_.stages()[stage].takes;
  for (size_t i = 0; i < takes.size(); ++i) {
    if (of_stage.gradients[i] == 0) continue;
    of_inputs += of_stage.gradients[i];
    own_gradients_[{stage, takes[i].from, action.micro_batch}] += of_stage.gradients[i];
  }
  kept_[pass] = splits ? of_stage.backward.back().live - of_inputs : 0;
  for (int from = stage + 1; from < static_cast<int>(shapes_.stages().size()); ++from) {
    own_gradients_.erase({from, stage, action.micro_batch});
  }
  if (!splits || !of_stage.weight_part_takes_gradients) {
    give_back(ActionKind::send_gradient, action);
  }
  if (!splits || !of_stage.weight_part_takes_inputs) {
    give_back(ActionKind::send_activation, action);
  }
}

void PipelineMemory::backward_weight(const Action& action) {
  const int stage = action.stage;
  const auto& of_stage = memory(stage);
  double of_inputs = 0;
  for (const double bytes : of_stage.gradients) of_inputs += bytes;
  auto parts = of_stage.backward_weight;
  for (auto& part : parts) {
    part.peak -= of_inputs;
    part.live -= of_inputs;
  }
  follow(action, parts);
  kept_[{stage, action.micro_batch}] = 0;
  if (of_stage.weight_part_takes_gradients) give_back(ActionKind::send_gradient, action);
  if (of_stage.weight_part_takes_inputs) give_back(ActionKind::send_activation, action);
}

// The first gradient of a parameter stays, later ones are added to it. A gradient that stays counts
// in the parts after its event, where PassPart does not include it.
void PipelineMemory::follow(const Action& action, const std::vector<PassPart>& parts) {
  const double others = kept_by_others({action.stage, action.micro_batch});
  for (const auto& part : parts) {
    report(action.stage, part.peak, others);
    if (part.until.kind == PassEvent::Kind::gradient) {
      const auto [owner, index] = own_.parameters.at(action.stage)[part.until.index];
      auto& [stage, exchange] = own_.parts[owner];
      if (last_backward_.at(stage) == now_ ||
          shapes_.ends_step(pipeline_rank_, action.micro_batch)) {
        // A gradient that is copied exists twice.
        exchange.open_for(index);
        if (!exchange.is_alone()) report(action.stage, part.live, others);
        exchange.gradient(index);
      } else {
        exchange.accumulate(index);
      }
    }
  }
}

void PipelineMemory::give_back(ActionKind send, const Action& action) {
  for (auto& [edge, buffers] : buffers_) {
    const auto& [kind, from, replica, to, tensor] = edge;
    const bool is_from = replica == action.micro_batch % shapes_.sharing(from);
    if (kind == send && to == action.stage && is_from) buffers.give_back();
  }
}

double PipelineMemory::kept_by_others(const Pass& pass) const {
  double sum = 0;
  for (const auto& [of, bytes] : kept_) sum += of == pass ? 0 : bytes;
  return sum;
}

void PipelineMemory::report(int stage, double pass, double others) {
  Moment moment{.activations = others, .pass = pass, .kept = std::min(pass, memory(stage).kept)};
  for (const auto& part : own_.parts) {
    const auto held = part.memory.held();
    moment.gradients += static_cast<double>(held.gradients);
    moment.buckets += static_cast<double>(held.buckets);
  }
  for (const auto& [edge, buffers] : buffers_) moment.messages += buffers.held();
  for (const auto& [edge, bytes] : own_gradients_) moment.messages += bytes;
  for (const auto& [edge, bytes] : sent_) moment.messages += bytes;
  moment.messages += evaluation_buffers();
  observe_(moment);
}

double PipelineMemory::evaluation_buffers() const {
  double sum = 0;
  for (const int stage : own_stages_) {
    const auto& takes = shapes_.stages()[stage].takes;
    for (size_t i = 0; i < takes.size(); ++i) {
      const int from = takes[i].from;
      if (from == parallel::StageInput::kBatch || is_here(from)) continue;
      // Each batch is the first micro-batch of an evaluation, which the first replicas of all
      // stages run.
      const int depth = shapes_.depth(ActionKind::send_activation, from, stage, true);
      sum += plan::ReceiveBuffers(memory(stage).taken[i], depth).of_evaluations();
    }
  }
  return sum;
}

double PipelineMemory::idle_buffers() const {
  double sum = evaluation_buffers();
  for (const auto& [edge, buffers] : buffers_) sum += buffers.held();
  return sum;
}

}  // namespace troika::train
