// `troika plan --profile`: searches for the best plan of a profiled model.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troika::cli {

struct SearchArguments {
  std::vector<std::string> profiles;
  std::string cluster;  // of --cluster
  std::string cost_model = "troika";
  std::vector<int> machines;
  std::vector<double> bandwidths;  // bytes per second
  bool straight = false;
  bool fewer_machines = false;
  bool cuts_layers = true;
  double memory_bytes = -1;       // -1: not given
  double compression_ratio = -1;  // -1: not given
  double global_batch = 0;        // samples; 0: not given
  std::string json;
};

// Adds --profile and the options that depend on it, apart from --memory-bytes.
void add_search_options(CLI::App& command, SearchArguments& arguments);

// Prints the best plan. If no plan fits into memory, says so and prints the plan that needs the
// least memory. Returns 0 in both cases. Throws Error(usage) for files and arguments that are wrong
// or contradict each other.
int search_plan(const SearchArguments& arguments);

}  // namespace troika::cli
