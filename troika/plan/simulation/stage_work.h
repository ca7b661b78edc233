// The work of a plan's stages, from the profile of a model's blocks.
#pragma once

#include <vector>

#include "troika/layout/plan.h"
#include "troika/layout/profile.h"
#include "troika/plan/simulation/simulated_work.h"

namespace troika::plan {

struct StageWorkOptions {
  // Samples of a micro-batch, divided by the profile's. Times and activations grow with it.
  double samples = 1;
  // Seconds of a stage's pass that do not depend on the samples (its kernels' launches, say); at
  // most the whole pass.
  double pass_overhead = 0;
  // Bytes of parameters that the optimizer steps over in a second; 0: steps take no time.
  double optimizer_bytes_per_second = 0;
};

// Returns the work of each stage of the plan's schedule.
// - Stages are plan.cut, or the cut of least longest time (layout::balanced_cut()).
// - What crosses a cut is the output of each block before it that a block behind it reads.
// - Buckets of gradients have whole blocks, from the last to the first (layout::assign_buckets()).
// - A rank keeps parameters, gradients and states of the optimizer, less what ZeRO shares out among
//   its ranks. With stage 3 the largest block's parameters are there as a whole.
// - A recomputed segment of blocks keeps the input of its first block, and runs forward again
//   before its backward pass.
// Throws Error(usage) for a plan of another precision than the profile's, a cut into another number
// of stages than the schedule's, numbers of options that are negative or not finite, what profiles
// do not tell (compressed gradients, offload, recompute selective or by a budget), and the errors
// of layout::parse_cut() and schedule_of().
std::vector<StageWork> stage_work(const layout::Profile& profile, const layout::Plan& plan,
                                  const StageWorkOptions& options = {});

// Returns the cluster with the profile's links at levels whose latency and bandwidth are unknown.
layout::Cluster with_measured_links(layout::Cluster cluster, const layout::Profile& profile);

}  // namespace troika::plan
