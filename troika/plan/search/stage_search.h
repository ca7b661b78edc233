// The search for the stages of a plan by StepModel::estimate().
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

// Returns the plan of these settings with the least estimate below `limit` whose stages lack at
// most `allowance` bytes. Its stages end at some of `places`, the ends of blocks, ascending. An
// exact dynamic program, which extends partial plans stage by stage, and keeps those whose sums and
// maxima (see StepModel) are not all exceeded or equalled by another partial plan's with the same
// stages' end and devices.
std::optional<StepPlan> fastest_stages(const StepModel& model, const StepSettings& settings,
                                       const std::vector<size_t>& places, double allowance,
                                       double limit);
// Returns the same among the plans whose stages take about equal times without sums and have equal
// numbers of replicas, in much less time. There is one such plan for each number of replicas.
std::optional<StepPlan> fastest_of_equal_stages(const StepModel& model,
                                                const StepSettings& settings,
                                                const std::vector<size_t>& places, double allowance,
                                                double limit);
// Returns the plan whose worst stage lacks the fewest bytes, if they are fewer than `limit`.
std::optional<StepPlan> least_lacking_stages(const StepModel& model, const StepSettings& settings,
                                             const std::vector<size_t>& places, double limit);

// Returns the smallest limit that is greater than this value.
double up_to(double value);

// Returns at most `most` places at which a stage may end, at equal distances in time and
// parameters.
std::vector<size_t> places_of(const StepModel& model, size_t most);

}  // namespace troika::plan
