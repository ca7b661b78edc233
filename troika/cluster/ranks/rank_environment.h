// The environment variables that the launcher sets for its ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/ranks/launch_options.h"
#include "troika/net/secret.h"

namespace troika::cluster {

// The place of one launch in one round; common to all of its ranks.
struct LaunchPlace {
  std::string address;
  int port = 0;
  std::string run_id;
  int node_rank = 0;
  int num_nodes = 1;
  int round = 0;     // number of previous rounds
  int restarts = 0;  // number of previous rounds that failed

  int rank(int local_rank, int processes) const { return node_rank * processes + local_rank; }
};
// Returns a name that no other launch has.
std::string unique_run_id();

// Return the launch's secret, the same on all machines, and the secret for one round's ranks, which
// is derived from it.
RunSecret secret_of_launch(const LaunchOptions& options);
net::Secret secret_of_round(const net::Secret& launch, const LaunchPlace& place);

// Returns the place in the first round.
LaunchPlace decide_place(const LaunchOptions& options);
// Returns the place in the round after `place`.
LaunchPlace next_place(const LaunchOptions& options, LaunchPlace place);

// Where a failing rank writes its reports.
struct FailureFiles {
  std::filesystem::path error_file;
  std::filesystem::path flight_record;  // a folder
  // Where the launch notes how processes of a parameter server have ended.
  std::filesystem::path ends = {};
};

// Returns NAME=VALUE entries: this process's environment with the rank's own variables.
std::vector<std::string> rank_environment(const LaunchOptions& options, const LaunchPlace& place,
                                          const net::Secret& secret, int local_rank,
                                          const FailureFiles& files);

}  // namespace troika::cluster
