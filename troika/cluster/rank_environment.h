// The environment variables the launcher gives its ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/cluster/launcher.h"

namespace troika::cluster {

// What all ranks of one round share.
struct LaunchPlace {
  std::string address;
  int port;
  std::string run_id;
  int restarts = 0;  // rounds before this one
};
// Of the first round.
LaunchPlace decide_place(const LaunchOptions& options);
// Of the round after that of `place`.
LaunchPlace next_place(const LaunchOptions& options, LaunchPlace place);

// NAME=VALUE entries: those of this process with the rank's own in place.
std::vector<std::string> rank_environment(const LaunchOptions& options, const LaunchPlace& place,
                                          int local_rank, const std::filesystem::path& error_file);

}  // namespace troika::cluster
