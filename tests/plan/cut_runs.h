// Simulated runs of blocks that a tensor or a context axis cuts.
#pragma once

#include <string>

#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"

namespace troika::plan {

// Four equal blocks, which an axis may cut.
inline layout::Profile equal_blocks() {
  layout::Profile profile;
  profile.optimizer_factor = 2;
  for (int i = 0; i < 4; ++i) {
    profile.blocks.push_back({.name = "block" + std::to_string(i),
                              .forward = 4,
                              .backward_input = 4,
                              .backward_weight = 4,
                              .output_bytes = 80,
                              .saved_bytes = 800,
                              .parameter_bytes = 1000,
                              .workspace_bytes = 40});
  }
  return profile;
}

// Makes a tensor axis cut 3/4 of the time of each block, half of its saved bytes and 0.8 of its
// parameters; sequence parallelism divides the rest of both times and saved bytes, of so many
// tokens (0: any number).
inline layout::Profile with_tensor_cuts(layout::Profile profile, int tokens) {
  for (auto& block : profile.blocks) {
    block.tensor = layout::TensorCut{.units = 4,
                                     .tokens = tokens,
                                     .time_share = 0.75,
                                     .parameter_share = 0.8,
                                     .saved_share = 0.5,
                                     .token_time_share = 0.25,
                                     .token_saved_share = 0.5,
                                     .forward_sums = 2,
                                     .backward_sums = 3,
                                     .backward_gathers = 1,
                                     .sum_bytes = 80};
  }
  return profile;
}

// Devices of hosts that are joined by links of these latencies and bandwidths.
inline layout::Cluster hosts(int count, int devices) {
  auto cluster = layout::Cluster::uniform(count, devices);
  cluster.group = {.latency = 0.01, .bandwidth = 100};
  cluster.network = {.latency = 0.1, .bandwidth = 10};
  return cluster;
}

inline SimulatedRun run_of(const layout::Profile& profile, const layout::Plan& plan,
                           const layout::Cluster& cluster) {
  SimulatedRun run;
  run.plan = plan;
  run.stages = stage_work(profile, plan);
  run.cluster = cluster;
  run.all_reduce = layout::Algorithm::ring;
  return run;
}

}  // namespace troika::plan
