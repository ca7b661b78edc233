// The optimizer that a task's parameters get, and its learning rates.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/optim/optimizer.h"
#include "troika/optim/schedule.h"

namespace troika::train {

// Parameters whose steps differ from the others'. What is left out is the recipe's.
struct ParameterGroup {
  // By the name in the module, as "layer1.0.conv1.weight".
  std::function<bool(const std::string& name)> contains;
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

struct OptimizerRecipe {
  optim::OptimizerOptions optimizer;
  // The schedule of the rates of all groups.
  optim::ScheduleOptions schedule;
  // A parameter belongs to the first of these that contains it, else to none.
  std::vector<ParameterGroup> groups = {};

  // Another optimizer, in place of what `optimizer` and `groups` say; of those only optimizer.lr,
  // what the schedule multiplies, still counts. It gets what this rank steps: parameters, float32
  // masters of them, or with ZeRO pieces of one dimension under the names of their parameters.
  using Make = std::function<std::unique_ptr<optim::FlatOptimizer>(std::vector<optim::Parameter>)>;
  Make make = {};
  // Whether that steps each element as if there were no others, so that pieces do.
  bool is_element_wise = false;

  // Another course of the rates, in place of `schedule`: the factor on them at an optimizer step.
  optim::Schedule factor = {};
};

// Whether the recipe's optimizer steps parameters on another device than the CPU. One of its own
// gets masters on the host.
bool steps_on_devices(const OptimizerRecipe& recipe);

// Makes the recipe's optimizer over these. Throws as optim::make_optimizer(). A group may have no
// parameters, as on a rank that steps none of them.
std::unique_ptr<optim::FlatOptimizer> make_optimizer(const OptimizerRecipe& recipe,
                                                     std::vector<optim::Parameter> parameters);

}  // namespace troika::train
