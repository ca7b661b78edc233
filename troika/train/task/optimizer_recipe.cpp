#include "troika/train/task/optimizer_recipe.h"

#include <algorithm>
#include <map>
#include <utility>

#include "troika/base/error.h"

namespace troika::train {

namespace {

// One optimizer for each group, behind the interface and state names of a single optimizer.
class GroupedOptimizer : public optim::FlatOptimizer {
 public:
  struct Member {
    std::unique_ptr<optim::FlatOptimizer> optimizer;
    double rate_factor;  // times this object's learning rate
  };

  GroupedOptimizer(std::vector<optim::Parameter> parameters, double rate,
                   std::vector<Member> members)
      : FlatOptimizer(optim::FlatParameters(std::move(parameters)), rate, {}, /*counts=*/false),
        members_(std::move(members)) {
    std::map<std::string, size_t> indices;
    for (const auto& parameter : this->parameters().list()) {
      indices.emplace(parameter.name, indices.size());
    }
    states_.resize(indices.size());
    for (const auto& member : members_) {
      member.optimizer->complete_sums_by([this](const at::Tensor& sums) { complete_sums(sums); });
      for (const auto& [name, tensor] : member.optimizer->state()) {
        const auto dot = name.rfind('.');
        states_[indices.at(name.substr(0, dot))].emplace_back(name.substr(dot + 1), tensor);
      }
    }
  }

  int64_t elements_each(std::string_view state) const override {
    return members_.front().optimizer->elements_each(state);
  }

 private:
  // Members find the gradients in their parameters.
  void update(const std::vector<optim::FlatRange>& /*ranges*/) override {
    for (const auto& member : members_) {
      member.optimizer->set_learning_rate(learning_rate() * member.rate_factor);
      member.optimizer->step();
    }
  }
  void update_on_device(const std::vector<optim::FlatRange>& ranges,
                        const std::vector<at::Tensor>& /*gradients*/) override {
    update(ranges);
  }
  optim::NamedTensors more_state(size_t index) const override { return states_[index]; }

  std::vector<Member> members_;
  std::vector<optim::NamedTensors> states_;  // of each parameter; share the members' memory
};

// The optimizer of a rank that holds no parameters. Its learning rate follows the schedule, too.
class NoOptimizer : public optim::FlatOptimizer {
 public:
  explicit NoOptimizer(double rate)
      : FlatOptimizer(optim::FlatParameters(), rate, {}, /*counts=*/false) {}

 private:
  void update(const std::vector<optim::FlatRange>& /*ranges*/) override {}
};

// The first group that contains the parameter, or the end.
auto group_of(const OptimizerRecipe& recipe, const optim::Parameter& parameter) {
  return std::ranges::find_if(
      recipe.groups, [&](const ParameterGroup& one) { return one.contains(parameter.name); });
}

optim::OptimizerOptions with_group(optim::OptimizerOptions options, const ParameterGroup& group) {
  options.lr = group.lr.value_or(options.lr);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  return options;
}

}  // namespace

optim::OptimizerOptions options_of(const OptimizerRecipe& recipe,
                                   const optim::Parameter& parameter) {
  auto options = recipe.optimizer;
  const auto group = group_of(recipe, parameter);
  if (group != recipe.groups.end()) options = with_group(options, *group);
  if (!options.decay_vectors && parameter.tensor.dim() <= 1) options.weight_decay = 0;
  return options;
}

bool steps_on_devices(const OptimizerRecipe& recipe) {
  return !recipe.make && optim::steps_on_devices(recipe.optimizer);
}

std::unique_ptr<optim::FlatOptimizer> make_optimizer(const OptimizerRecipe& recipe,
                                                     std::vector<optim::Parameter> parameters) {
  if (recipe.make) return recipe.make(std::move(parameters));
  if (recipe.groups.empty()) return optim::make_optimizer(std::move(parameters), recipe.optimizer);
  const auto& groups = recipe.groups;
  std::vector<std::vector<optim::Parameter>> members(groups.size() + 1);  // last: without group
  for (const auto& parameter : parameters) {
    const auto group = group_of(recipe, parameter);
    members[static_cast<size_t>(group - groups.begin())].push_back(parameter);
  }
  std::vector<GroupedOptimizer::Member> optimizers;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].empty()) continue;
    auto options = recipe.optimizer;
    if (i < groups.size()) options = with_group(options, groups[i]);
    optimizers.push_back(
        {optim::make_optimizer(std::move(members[i]), options), options.lr / recipe.optimizer.lr});
  }
  return std::make_unique<GroupedOptimizer>(std::move(parameters), recipe.optimizer.lr,
                                            std::move(optimizers));
}

std::unique_ptr<optim::FlatOptimizer> make_empty_optimizer(const OptimizerRecipe& recipe) {
  return std::make_unique<NoOptimizer>(recipe.optimizer.lr);
}

}  // namespace troika::train
