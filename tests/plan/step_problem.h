// A problem of the search for plans: a chain of blocks on devices that one link joins.
#pragma once

#include <string>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

// A block for each entry of `seconds`, which a micro-batch of one sample takes in both passes.
inline StepProblem problem_of(std::vector<double> seconds, int devices, double batch) {
  StepProblem problem{.profiles = {{}}, .cluster = layout::Cluster::uniform(1, devices)};
  for (const double each : seconds) {
    problem.profiles[0].blocks.push_back({.name = std::to_string(problem.profiles[0].blocks.size()),
                                          .forward = each / 2,
                                          .backward_input = each / 4,
                                          .backward_weight = each / 4,
                                          .output_bytes = 10,
                                          .saved_bytes = 100,
                                          .parameter_bytes = 1000});
  }
  problem.cluster.group = {0, 1e6};
  problem.global_batch = batch;
  return problem;
}

}  // namespace troika::plan
