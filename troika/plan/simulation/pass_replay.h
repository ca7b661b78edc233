// The passes and messages of a pipeline's step, without collectives, memory and disturbances.
#pragma once

#include <vector>

#include "troika/layout/schedules/schedule.h"
#include "troika/plan/simulation/cluster_links.h"

namespace troika::plan {

// A rank of a pipeline, with its passes in order: F, B, I and W of its stage. Two forward passes
// may be joined: they begin when both have their inputs, and end together.
struct ReplayedRank {
  int stage = 0;
  int replica = 0;  // of its stage
  int device = 0;   // in the cluster
  std::vector<layout::Action> passes = {};
  double forward = 0, backward_input = 0, backward_weight = 0;  // seconds of a pass
  double pair = 0;  // seconds of two joined forward passes
};

struct ReplayedPipeline {
  std::vector<std::vector<ReplayedRank>> stages = {};  // the replicas of each stage
  // The bytes of an output of each stage but the last one; the gradient has as many.
  std::vector<double> output_bytes = {};
  // Whether each replica has micro-batches of its own. If not, micro-batch i is that of replica i
  // modulo the number of replicas in each stage.
  bool has_own_micro_batches = true;
};

// Returns the end of the last pass of each stage, in seconds from the begin of the step. Passes and
// messages take place as simulate_run() says, at the same times. The work grows with the number of
// passes and not with the cluster, except for its links.
std::vector<double> replay_passes(const ReplayedPipeline& pipeline, const ClusterLinks& links);

}  // namespace troika::plan
