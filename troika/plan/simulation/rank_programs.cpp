#include "troika/plan/simulation/rank_programs.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/plan/errors/refuse.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;
using layout::Axis;

namespace {

bool is_backward(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}

}  // namespace

std::vector<Action> passes_of(const ProgramItem& item) {
  std::vector<Action> passes{item.action};
  if (item.beside) passes.push_back(*item.beside);
  return passes;
}

RankPrograms::RankPrograms(const layout::Schedule& schedule, const layout::Mesh& mesh)
    : is_uneven_(mesh.has_uneven_stages()) {
  for (const auto axis : mesh.axes()) {
    if (axis != Axis::expert || mesh.size(axis) == 1) continue;
    refuse("mesh of a simulation", mesh.text(), "axes pipeline, data, context and tensor alone");
  }
  if (is_uneven_ && mesh.size(Axis::tensor) * mesh.size(Axis::context) > 1) {
    refuse("mesh of a simulation", mesh.text(),
           "stages with equal numbers of replicas beside a tensor or context axis");
  }
  const int places = mesh.size(Axis::pipeline);
  if (schedule.ranks.size() != static_cast<size_t>(places)) {
    refuse("ranks of the schedule", std::to_string(schedule.ranks.size()),
           fmt::format("{}, the size of the pipeline axis", places));
  }
  const layout::Inventory inventory(schedule);
  micro_batches_ = inventory.micro_batches;
  place_of_stage_ = inventory.rank_of;
  ranks_of_.resize(static_cast<size_t>(places));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const int place = mesh.coordinates(rank)[Axis::pipeline];
    auto& own = ranks_of_[static_cast<size_t>(place)];
    places_.push_back(place);
    index_of_.push_back(own.size());
    own.push_back(rank);
  }
  averaging_ = members(mesh, {Axis::data, Axis::context});
  computing_ = members(mesh, {Axis::context, Axis::tensor});
  const size_t passes = static_cast<size_t>(stages()) * static_cast<size_t>(micro_batches_);
  takes_activation_.resize(passes);
  takes_gradient_.resize(passes);
  if (!is_uneven_) {
    for (const auto& actions : schedule.ranks) prepare(actions);
    return;
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<size_t>(place(rank))];
    const auto& replica = averaging(rank);
    const auto replicas = static_cast<int>(groups_[replica.group].size());
    prepare(layout::actions_of_replica(actions, static_cast<int>(replica.index), replicas));
  }
}

std::vector<RankPrograms::Member> RankPrograms::members(const layout::Mesh& mesh,
                                                        const std::vector<Axis>& axes) {
  struct Known {
    size_t group, number;
  };
  std::map<std::array<int, layout::kAxes>, Known> known;
  std::vector<size_t> at_place(ranks_of_.size(), 0);  // the number of groups
  std::vector<Member> members;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    auto at = mesh.coordinates(rank);
    for (const auto axis : axes) at[axis] = 0;
    auto found = known.find(at.values);
    if (found == known.end()) {
      const size_t number = at_place[static_cast<size_t>(place(rank))]++;
      found = known.emplace(at.values, Known{groups_.size(), number}).first;
      groups_.emplace_back();
    }
    auto& group = groups_[found->second.group];
    members.push_back({found->second.group, group.size(), found->second.number});
    group.push_back(rank);
  }
  return members;
}

void RankPrograms::prepare(std::vector<Action> actions) {
  const auto at = [&](const Action& action) {
    return static_cast<size_t>(action.stage) * static_cast<size_t>(micro_batches_) +
           static_cast<size_t>(action.micro_batch);
  };
  auto& program = programs_.emplace_back();
  std::vector<size_t> last_backward(static_cast<size_t>(stages()), actions.size());
  const auto end_stage = [&](int stage) {
    auto& last = last_backward[static_cast<size_t>(stage)];
    if (last < program.size()) program[last].ends_stage = true;
    last = actions.size();
  };
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto& action = actions[i];
    if (action.kind == ActionKind::reduce) end_stage(action.stage);
    if (action.kind == ActionKind::receive_activation ||
        action.kind == ActionKind::receive_gradient) {
      continue;  // taken when the pass begins
    }
    program.push_back({.action = action});
    auto& item = program.back();
    if (is_pass(action.kind) && action.joined) item.beside = actions[++i];
    const size_t index = program.size() - 1;
    const auto note = [&](const Action& pass) {
      if (pass.kind == ActionKind::forward) takes_activation_[at(pass)] = index;
      if (is_backward(pass.kind)) takes_gradient_[at(pass)] = index;
      if (is_pass(pass.kind) && pass.kind != ActionKind::forward &&
          pass.kind != ActionKind::backward_input) {
        last_backward[static_cast<size_t>(pass.stage)] = index;
      }
    };
    note(item.action);
    if (item.beside) note(*item.beside);
  }
  for (const auto& action : actions) {
    const bool is_activation = action.kind == ActionKind::receive_activation;
    if (!is_activation && action.kind != ActionKind::receive_gradient) continue;
    program[is_activation ? takes_activation_[at(action)] : takes_gradient_[at(action)]]
        .takes.push_back(action);
  }
  for (int stage = 0; stage < stages(); ++stage) end_stage(stage);
}

const std::vector<ProgramItem>& RankPrograms::of(int rank) const {
  return programs_[static_cast<size_t>(is_uneven_ ? rank : place(rank))];
}

MessageTarget RankPrograms::target(int rank, const Action& send) const {
  const auto take = partner_of(send);
  const size_t at = static_cast<size_t>(take.stage) * static_cast<size_t>(micro_batches_) +
                    static_cast<size_t>(take.micro_batch);
  const auto& receivers = ranks_of(place_of_stage(take.stage));
  const size_t index = is_uneven_ ? static_cast<size_t>(take.micro_batch) % receivers.size()
                                  : index_of_[static_cast<size_t>(rank)];
  const bool is_activation = send.kind == ActionKind::send_activation;
  return {receivers[index], is_activation ? takes_activation_[at] : takes_gradient_[at]};
}

}  // namespace troika::plan
