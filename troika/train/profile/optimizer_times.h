// Measures the optimizer of a run.
#pragma once

#include "troika/comm/group.h"
#include "troika/optim/options.h"
#include "troika/state/state_dict.h"
#include "troika/train/engine/placement.h"

namespace troika::train {

struct OptimizerTimes {
  double parameter_bytes = 0;  // of trained parameters
  double state_bytes = 0;      // of states, and of float32 masters with their gradients
  double seconds = 0;          // of a step: the mean over ranks and steps, without outliers
};

// Steps copies of these parameters on all ranks at the same time. All numbers are 0 without
// parameters. Collective; blocks.
OptimizerTimes measure_optimizer(const state::StateDict& trained,
                                 const optim::OptimizerOptions& options, const Placement& placement,
                                 const comm::Group& group);

}  // namespace troika::train
