// `troika simulate` of a plan on a cluster, from a profile of the model's blocks.
#pragma once

#include <string>
#include <vector>

#include "troika/plan/simulation/goodput.h"
#include "troika/plan/simulation/stage_work.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace troika::cli {

struct ClusterArguments {
  std::string config;
  std::string plan;
  std::string profile;
  std::string cluster;
  std::string all_reduce = "auto";
  std::string sweep;
  int steps = 0;  // 0: the default
  double optimizer_rate = 0;
  double pass_overhead = 0;
  double samples = 0;   // of a pass of sandblaster; 0: the default
  int evaluations = 0;  // of an iteration of sandblaster; 0: the default
  plan::Disturbances disturbances;
  std::vector<double> stragglers;  // share and factor
  std::vector<std::string> slow;   // RANK,FACTOR
  plan::FailureModel failures;
};

// Adds the options. Returns the options that apply only to a simulation of a cluster.
std::vector<CLI::Option*> add_cluster_options(CLI::App& command, ClusterArguments& arguments);

// Simulates, prints the results, and writes them to the files `json` and `trace` unless these are
// empty. `overrides` are --section.name=value for CONFIG. Returns the exit code. Throws
// Error(usage) for missing or contradictory arguments and files, with the file and the place in it.
int simulate_cluster(const ClusterArguments& arguments, const std::string& json,
                     const std::string& trace, const std::vector<std::string>& overrides);

}  // namespace troika::cli
