// Text about a plan that was found, and about a run of it.
#pragma once

#include <string>

#include "troika/layout/plan.h"
#include "troika/observe/summary.h"
#include "troika/train/profile/automatic_plan.h"

namespace troika::train {

// Returns the schedule, mesh, savers, predicted step time and memory of the chosen plan, and how
// much slower the other plans are predicted to be, one line each, without a final line break.
std::string describe(const AutomaticPlan& automatic, const layout::Plan& plan);

// Returns lines with the predicted and the measured step time, phases of a step and memory of each
// rank, and their differences, without a final line break. Forward and backward are those of one
// micro-batch. A pipeline's phases are not compared: its passes alternate. `summary` is of a run of
// the plan.
std::string compare(const AutomaticPlan& automatic, const observe::RunSummary& summary);

}  // namespace troika::train
