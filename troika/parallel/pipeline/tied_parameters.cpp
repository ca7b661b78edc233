#include "troika/parallel/pipeline/tied_parameters.h"

#include <algorithm>
#include <map>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

// The pipeline ranks that use a parameter, with the owner's first.
using Users = std::vector<int>;

std::map<std::string, Users> users_of(const nn::Model& model, const StagesOfModel& stages,
                                      const PipelinePlace& place) {
  std::map<std::string, Users> users;
  const auto for_each_block = [&](const auto& visit) {
    for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
      for (size_t i = stages[s].begin; i < stages[s].end; ++i) {
        visit(model.blocks()[i], place.pipeline_rank(s));
      }
    }
  };
  for_each_block([&](const nn::Block& block, int rank) {
    for (const auto& [name, tensor] : model.owned_state(block)) users[name] = {rank};
  });
  for_each_block([&](const nn::Block& block, int rank) {
    for (const auto& name : block.borrows) {
      auto& of = users[name];
      if (std::ranges::find(of, rank) == of.end()) of.push_back(rank);
    }
  });
  std::erase_if(users, [](const auto& one) { return one.second.size() < 2; });
  for (auto& [name, of] : users) std::sort(of.begin() + 1, of.end());
  return users;
}

}  // namespace

TiedParameters::TiedParameters(const nn::Model& model, const StagesOfModel& stages,
                               const PipelinePlace& place, const comm::Group& world)
    : contributes_(place.replica() == 0) {
  std::map<Users, std::vector<std::string>> by_users;
  for (const auto& [name, users] : users_of(model, stages, place)) by_users[users].push_back(name);
  any_ = !by_users.empty();
  std::map<int, int> stage_on;  // a stage of each pipeline rank
  for (int s = 0; s < place.stages(); ++s) stage_on[place.pipeline_rank(s)] = s;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : nn::named_parameters(model)) tensors[name] = tensor;
  for (const auto& [users, names] : by_users) {
    const auto is_mine = [&](int rank) { return place.is_mine(stage_on.at(rank)); };
    if (std::ranges::none_of(users, is_mine)) continue;
    std::vector<int> ranks;
    for (const int user : users) {
      const auto replicas = place.replicas(stage_on.at(user));
      ranks.insert(ranks.end(), replicas.begin(), replicas.end());
    }
    Shared shared{world.new_group(ranks), {}};
    for (const auto& name : names) {
      shared.parameters.push_back(tensors.at(name));
      if (!is_mine(users.front())) borrowed_.insert(name);
    }
    const at::NoGradGuard no_grad;
    broadcast_packed(shared.group, shared.parameters, 0, "tied parameters");
    shared_.push_back(std::move(shared));
  }
}

void TiedParameters::sum_gradients() const {
  const at::NoGradGuard no_grad;
  for (const auto& [group, parameters] : shared_) {
    for (const auto& parameter : parameters) {
      if (!parameter.requires_grad()) continue;
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(parameter);
      if (!contributes_) gradient.zero_();
      group.all_reduce(gradient, comm::ReduceOp::sum, {.label = "tied gradients"}).wait();
    }
  }
}

}  // namespace troika::parallel
