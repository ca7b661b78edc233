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
