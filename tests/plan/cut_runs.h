// Simulated runs of blocks that a tensor or a context axis cuts.
#pragma once

#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"

namespace troika::plan {

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
