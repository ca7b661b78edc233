// The arguments of the commands that find a plan by measurement, with `--plan auto`.
#pragma once

#include <string>
#include <vector>

#include "troika/train/profile/automatic_plan.h"

namespace CLI {
class App;
}

namespace troika::cli {

struct AutomaticArguments {
  double seconds = 2;                   // for the passes of each profile
  std::vector<std::string> precisions;  // empty: not given
  double memory_bytes = -1;             // -1: not given
  bool cuts_layers = true;
  bool block_by_block = false;
  std::string cluster;  // file; empty: not given
};

// Adds --profile-seconds, --precisions, --no-tensor, --memory-bytes and --block-by-block.
// `memory_help` describes --memory-bytes.
void add_automatic_options(CLI::App& command, AutomaticArguments& arguments,
                           const std::string& memory_help);

// Adds --cluster for a command that has no other use for it.
void add_cluster_option(CLI::App& command, AutomaticArguments& arguments);

// Reads the file of the cluster.
train::AutomaticPlanOptions options_of(const AutomaticArguments& arguments);

// `--plan auto` and the arguments that were given, for the processes that a command starts.
std::vector<std::string> words_of(const AutomaticArguments& arguments);

// Throws Error(usage) if one of these options was given, as they have no effect without `--plan
// auto`; with `searches`, except for --no-tensor and --memory-bytes, which a search of profiles
// takes, too.
void require_no_automatic_options(const CLI::App& command, bool searches);
// The same for the option of add_cluster_option().
void require_no_cluster(const AutomaticArguments& arguments);

}  // namespace troika::cli
