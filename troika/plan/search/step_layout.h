// Converts a plan of the search to the layout::Plan of a run.
#pragma once

#include <string>

#include "troika/layout/plan.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

// Returns the name of a family's schedule, if all stages have the same number of replicas.
std::string schedule_name(StepFamily family, layout::StageWeights weights);

// If the stages have different numbers of replicas, the plan has a custom schedule, in which each
// replica has as many micro-batches in flight as StepModel assumes, and `micro_batches` counts
// those of all replicas. Otherwise the schedule is a named one, and `micro_batches` counts those of
// each replica. A tensor axis is the innermost, and a context axis is around it. The cut names all
// blocks, also of a single stage, so that the plan is refused for another model.
layout::Plan layout_of(const StepModel& model, const StepPlan& plan);

}  // namespace troika::plan
