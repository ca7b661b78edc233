#include "troika/parallel/pipeline/tied_parameters.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

// The stages that use a parameter, with the owner's first.
using Users = std::vector<int>;

// Returns one stage of each pipeline rank among those of the users, the owner's first.
std::vector<int> one_of_each_rank(const Users& users, const PipelinePlace& place) {
  std::set<int> ranks;
  std::vector<int> result;
  for (const int stage : users) {
    if (ranks.insert(place.pipeline_rank(stage)).second) result.push_back(stage);
  }
  return result;
}

std::map<std::string, Users> users_of(const nn::Model& model, const StagesOfModel& stages) {
  std::map<std::string, Users> users;
  const auto for_each_block = [&](const auto& visit) {
    for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
      for (size_t i = stages[s].begin; i < stages[s].end; ++i) visit(model.blocks()[i], s);
    }
  };
  for_each_block([&](const nn::Block& block, int stage) {
    for (const auto& [name, tensor] : model.owned_state(block)) users[name] = {stage};
  });
  for_each_block([&](const nn::Block& block, int stage) {
    for (const auto& name : block.borrows) {
      auto& of = users[name];
      if (std::ranges::find(of, stage) == of.end()) of.push_back(stage);
    }
  });
  return users;
}

}  // namespace

std::vector<TiedSet> tied_sets(const nn::Model& model, const StagesOfModel& stages,
                               const PipelinePlace& place) {
  std::map<Users, std::set<std::string>> by_users;
  for (const auto& [name, users] : users_of(model, stages)) by_users[users].insert(name);
  std::vector<TiedSet> result;
  for (const auto& [users, names] : by_users) {
    auto users_stages = one_of_each_rank(users, place);
    if (users_stages.size() > 1) result.push_back({std::move(users_stages), names});
  }
  return result;
}

TiedParameters::TiedParameters(const nn::Model& model, const StagesOfModel& stages,
                               const PipelinePlace& place, const comm::Group& world)
    : place_(place), world_(world) {
  for (const auto& [users_stages, names] : tied_sets(model, stages, place)) {
    const auto is_mine = [&](int stage) { return place.is_mine(stage); };
    if (std::ranges::none_of(users_stages, is_mine)) continue;
    std::vector<int> ranks;
    for (const int stage : users_stages) {
      const auto replicas = place.replicas(stage);
      ranks.insert(ranks.end(), replicas.begin(), replicas.end());
    }
    if (!is_mine(users_stages.front())) borrowed_.insert(names.begin(), names.end());
    Shared shared{{users_stages, names}, world.new_group(ranks)};
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : nn::named_parameters(model)) {
      if (names.contains(name)) parameters.push_back(tensor);
    }
    const at::NoGradGuard no_grad;
    broadcast_packed(shared.group, parameters, 0, "tied parameters");
    shared_.push_back(std::move(shared));
  }
}

void TiedParameters::sum(size_t set, const ParameterStore& store) {
  auto& shared = shared_.at(set);
  shared.summed = store.tensors();
  if (!store.has_shards()) return;
  std::vector<int> ranks;
  for (const int stage : shared.stages) ranks.push_back(place_.rank(stage, /*micro_batch=*/0));
  shared.group = world_.new_group(ranks);
}

void TiedParameters::sum_gradients() const {
  const at::NoGradGuard no_grad;
  for (const auto& shared : shared_) {
    // Replicas hold the same numbers, so only the first of each stage counts.
    const bool counts =
        shared.group.size() == static_cast<int>(shared.stages.size()) || place_.replica() == 0;
    for (const auto& tensor : shared.summed) {
      if (tensor.numel() == 0) continue;
      auto& gradient = tensor.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(tensor);
      if (!counts) gradient.zero_();
      shared.group.all_reduce(gradient, comm::ReduceOp::sum, {.label = "tied gradients"}).wait();
    }
  }
}

}  // namespace troika::parallel
