// The strategies with outer steps: their part of resolve_plan().
#pragma once

#include "troika/layout/cluster.h"
#include "troika/layout/plan.h"
#include "troika/train/options/options.h"

namespace troika::train {

void choose_diloco(layout::Plan& plan, const TrainOptions& options, const layout::Cluster&);
void choose_swarm(layout::Plan& plan, const TrainOptions& options, const layout::Cluster&);
// Throws Error(usage) for options that have no meaning in a swarm with outer steps.
void require_outer_steps_fit_swarm(const TrainOptions& options, const layout::Plan& plan);

}  // namespace troika::train
