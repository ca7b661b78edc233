// A plan of the search as the layout::Plan that a run takes.
#pragma once

#include "troika/layout/plan.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

// Stages with different numbers of replicas get a schedule of their own, in which each replica has
// as many micro-batches on their way as StepModel counts; its micro-batches are those of all
// replicas. Otherwise micro-batches are those of each replica.
layout::Plan layout_of(const StepModel& model, const StepPlan& plan);

}  // namespace troika::plan
