// The environment variables the launcher gives its ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/cluster/launcher.h"
#include "troika/cluster/run_secret.h"
#include "troika/net/secret.h"

namespace troika::cluster {

// The ranks of one launch share this in one round.
struct LaunchPlace {
  std::string address;
  int port = 0;
  std::string run_id;
  int node_rank = 0;
  int num_nodes = 1;
  int round = 0;     // rounds before this one
  int restarts = 0;  // those of them that failed

  int rank(int local_rank, int processes) const { return node_rank * processes + local_rank; }
};
// Names this launch among all there are.
std::string unique_run_id();

// The secret of the launch from which those of its rounds' ranks come; the same on all machines.
RunSecret secret_of_launch(const LaunchOptions& options);
net::Secret secret_of_round(const net::Secret& launch, const LaunchPlace& place);

// The place in the first round.
LaunchPlace decide_place(const LaunchOptions& options);
// The place in the round after that of `place`.
LaunchPlace next_place(const LaunchOptions& options, LaunchPlace place);

// Where a rank that fails writes.
struct FailureFiles {
  std::filesystem::path error_file;
  std::filesystem::path flight_record;  // a folder
};

// NAME=VALUE entries: those of this process with the rank's own in place.
std::vector<std::string> rank_environment(const LaunchOptions& options, const LaunchPlace& place,
                                          const net::Secret& secret, int local_rank,
                                          const FailureFiles& files);

}  // namespace troika::cluster
