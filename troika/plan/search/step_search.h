// The search for the fastest plan by StepModel.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

struct StepSearch {
  // One plan for each combination of settings except tensor and context axes and the number of
  // devices: the plan that fits of the least estimate, or a faster one than all others; if none
  // fits, the plan that exceeds the memory least. A second plan for each combination with a tensor
  // axis, and a third one with a context axis. Another one with overlapped sums, if it has these.
  // No plans with offload if the same plan fits with less of it.
  std::vector<StepPlan> alternatives = {};
  std::optional<StepPlan> best = {};  // the fastest plan that fits
  // If no plan fits: the fastest of the plans that exceed the memory least.
  std::optional<StepPlan> nearest = {};
  double lower_bound = 0;  // on the seconds of any plan
  // Whether all plans were considered: every cut between blocks, and every number of replicas. True
  // for at most 40 blocks and 16 devices, unless too many pipelines have a lower bound below the
  // best price.
  bool is_exact = true;
};

// Searches each combination of settings for the plan of the least estimate (fastest_stages()), and
// prices it. For small models and clusters, then visits all pipelines whose lower bound is below
// the best price (PipelineSearch). The result depends only on `model`.
StepSearch search_steps(const StepModel& model);

// Whether an alternative without a cut fits.
bool fits_whole(const StepSearch& search);

// Replaces `best` by the simplest alternative that fits and that is slower than the fastest by at
// most the share `margin`. Alternatives are ordered from simple to complex: the whole model before
// pipelines, earlier profiles, less recomputation and less sharding first, then the same with a
// tensor axis, without and with overlapped sums, and then with a context axis. `check`, if not
// empty, gives a plan that would be chosen its true memory_bytes and lacking_bytes; if the plan
// then does not fit, the next one is chosen. If none fits, `nearest` becomes the alternative that
// exceeds the memory least.
void prefer_simple(StepSearch& search, double margin,
                   const std::function<void(StepPlan&)>& check = {});

}  // namespace troika::plan
