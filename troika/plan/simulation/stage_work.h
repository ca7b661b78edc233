// The work of a plan's stages, from the profile of a model's blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/layout/plan.h"
#include "troika/layout/plan_places.h"
#include "troika/layout/profile.h"
#include "troika/plan/simulation/simulated_work.h"

namespace troika::plan {

struct StageWorkOptions {
  // Samples of a micro-batch, divided by the profile's. Times and activations are proportional to
  // this ratio.
  double samples = 1;
  // Seconds of a stage's pass that do not depend on the number of samples, for example kernel
  // launches; at most the whole pass.
  double pass_overhead = 0;
  // Bytes of parameters that the optimizer updates per second; 0: as the profile says.
  double optimizer_bytes_per_second = 0;
  layout::PlanPlaces places = {};  // of the plan, for errors
};

// Returns the work of each stage of the plan's schedule.
// - The stages are those of plan.stages.cut; without a cut, those of layout::balanced_cut().
// - Passes of a stage with replicas are longer than measured, because the replicas wait for the
//   latest one: by the expected maximum of normal numbers with the blocks' spreads, with ZeRO stage
//   3 in each block, which gathers its parameters, otherwise over the whole stage.
// - A message across a cut has the outputs of all blocks before the cut that blocks after the cut
//   read.
// - Buckets of gradients have whole blocks, from the last to the first (layout::assign_buckets()).
// - A rank holds parameters, gradients and optimizer states, or its ZeRO shards of them and
//   unsharded_bytes(); and batch_bytes().
// - Received inputs and buffers of messages are those of ReceiveBuffers.
// - The workspace of a pass is what its micro-batch takes beyond its kept activations, in the block
//   where it takes most, when the activations of later blocks are freed.
// - On a tensor axis, a rank has its part of the blocks (layout::tensor_shard()). Each of its
//   passes waits for the latest rank in each block. A whole backward pass computes for
//   layout::seconds_beside_sum() and seconds_beside_gather() beside its sums.
//   With tensor_overlap, the sums of a forward pass have places in it (layout::forward_turns()).
// - On a context axis, a rank has its part of the tokens (layout::context_shard()). The ranks of
//   the axis wait for each other as those of a tensor axis do.
// - Stages split backward passes as SplitBackward says.
// - A recomputed segment of blocks keeps the input of its first block, and repeats its forward pass
//   before its backward pass, with its sums over the tensor axis and its messages on the context
//   axis.
// Throws Error(usage) for a plan of another precision than the profile's or for another number of
// parameters (by their bytes, if the profile has no number), a cut into another number of stages
// than the schedule's, options that are negative or not finite, and features that a profile does
// not describe (compressed gradients, offload, recompute selective or by a budget). Throws the
// errors of layout::context_shard(), tensor_shard(), parse_cut() and schedule_of().
std::vector<StageWork> stage_work(const layout::Profile& profile, const layout::Plan& plan,
                                  const StageWorkOptions& options = {});

// Whether the profile may be of a model with this number of parameters: the number in the profile,
// or else one that fits the bytes of its parameters at 2, 4 or 8 bytes each.
bool may_have(const layout::Profile& profile, int64_t parameters);

}  // namespace troika::plan
