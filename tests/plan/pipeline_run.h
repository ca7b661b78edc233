// A pipeline to simulate, whose passes take 1 s forward and 2 s backward.
#pragma once

#include <string>
#include <utility>

#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {

inline SimulatedRun pipeline_run(const std::string& mesh, std::string schedule, int micro_batches) {
  SimulatedRun run;
  run.plan.mesh = layout::Mesh::parse(mesh);
  run.plan.schedule = std::move(schedule);
  run.plan.micro_batches = micro_batches;
  run.cluster = layout::Cluster::uniform(run.plan.mesh.ranks(), 1);
  run.stages = {{.passes = {1, 1, 1}}};
  return run;
}

}  // namespace troika::plan
