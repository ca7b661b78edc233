// The search for the fastest plan by StepModel.
#pragma once

#include <optional>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

struct StepSearch {
  // One plan for each combination of settings except the number of devices: the fastest plan that
  // fits; if none fits, the plan that exceeds the memory least.
  std::vector<StepPlan> alternatives = {};
  std::optional<StepPlan> best = {};  // the fastest plan that fits
  // If no plan fits: the fastest of the plans that exceed the memory least.
  std::optional<StepPlan> nearest = {};
  double lower_bound = 0;  // on the seconds of any plan
  // Whether all plans were considered: every cut between blocks, and every number of replicas. True
  // for at most 40 blocks and 16 devices.
  bool is_exact = true;
};

// Runs an exact dynamic program for each combination of settings. It extends partial plans stage by
// stage, and keeps those whose sums and maxima (see StepModel) are not all exceeded or equalled by
// another partial plan's with the same stages' end and devices. Drops partial plans that cannot be
// faster than the best plan so far. The result depends only on `model`.
StepSearch search_steps(const StepModel& model);

// Replaces `best` by the simplest alternative that fits and that is slower by at most the share
// `margin`. Alternatives are ordered from simple to complex: the whole model before pipelines, less
// recomputation and less sharding first.
void prefer_simple(StepSearch& search, double margin);

}  // namespace troika::plan
