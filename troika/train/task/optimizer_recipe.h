// The optimizer of a task's parameters, and its learning rates.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/optim/optimizer.h"
#include "troika/optim/schedule.h"

namespace troika::train {

// Parameters with hyperparameters of their own. A missing value is taken from the recipe.
struct ParameterGroup {
  // Matches by the parameter's name in the module, for example "layer1.0.conv1.weight".
  std::function<bool(const std::string& name)> contains;
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

struct OptimizerRecipe {
  optim::OptimizerOptions optimizer;
  // The schedule of all groups' learning rates.
  optim::ScheduleOptions schedule;
  // A parameter belongs to the first group that contains it, or to none.
  std::vector<ParameterGroup> groups = {};

  // Makes a custom optimizer, in place of `optimizer` and `groups`. Only optimizer.lr, which the
  // schedule multiplies, still counts. Takes the tensors that this rank steps: parameters, their
  // float32 masters, or, with ZeRO, one-dimensional shards under the names of their parameters.
  using Make = std::function<std::unique_ptr<optim::FlatOptimizer>(std::vector<optim::Parameter>)>;
  Make make = {};
  // Whether the custom optimizer steps each element independently of all others, and therefore
  // works on shards.
  bool is_element_wise = false;

  // A custom schedule in place of `schedule`: the factor on the learning rates at an optimizer
  // step.
  optim::Schedule factor = {};
};

// Whether the recipe's optimizer can step parameters on devices other than the CPU. A custom
// optimizer gets masters on the host instead.
bool steps_on_devices(const OptimizerRecipe& recipe);

// Returns the options of one parameter: those of its group, without weight decay if vectors do not
// decay and it is one. A custom optimizer has none.
optim::OptimizerOptions options_of(const OptimizerRecipe& recipe,
                                   const optim::Parameter& parameter);
// Makes the recipe's optimizer over `parameters`. Throws the errors of optim::make_optimizer(). A
// group may be empty, for example on a rank that steps none of its parameters.
std::unique_ptr<optim::FlatOptimizer> make_optimizer(const OptimizerRecipe& recipe,
                                                     std::vector<optim::Parameter> parameters);
// Makes the recipe's optimizer on a rank that holds no parameters.
std::unique_ptr<optim::FlatOptimizer> make_empty_optimizer(const OptimizerRecipe& recipe);

}  // namespace troika::train
