// The search for the plan of least time by StepModel.
#pragma once

#include <optional>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

struct StepSearch {
  // For all settings, apart from the number of devices: the fastest plan that fits, or the one that
  // lacks least.
  std::vector<StepPlan> alternatives = {};
  std::optional<StepPlan> best = {};  // the fastest plan that fits
  // If none fits: the fastest of those that lack least.
  std::optional<StepPlan> nearest = {};
  double lower_bound = 0;  // no plan takes less
  // Whether all plans were considered: every cut between blocks, and every number of replicas. That
  // is so for at most 40 blocks and 16 devices.
  bool is_exact = true;
};

// An exact dynamic programme for each of the settings: the stages from the first one on, with all
// sums and maxima of the model that no other ones are below. A partial plan that cannot be
// faster than the best plan so far is dropped. The result depends on `model` alone.
StepSearch search_steps(const StepModel& model);

}  // namespace troika::plan
