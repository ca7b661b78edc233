// The order of passes of a plan that the search considers.
#pragma once

#include <vector>

#include "troika/layout/schedules/schedule.h"
#include "troika/plan/search/step_model.h"

namespace troika::plan {

// Returns the passes of each stage of a pipeline with flushes, without messages. If all stages have
// the same number of replicas, they are those of one replica and its `micro_batches` / replicas,
// and forward passes that take turns are joined (layout::join_pairs()); otherwise those of all
// replicas of a stage, which begins with as many forward passes as it and all later stages have
// devices.
layout::Schedule step_order(const StepSettings& settings, const std::vector<StepStage>& stages,
                            int micro_batches);

// Whether all stages have the same number of replicas.
bool is_even(const std::vector<StepStage>& stages);

}  // namespace troika::plan
