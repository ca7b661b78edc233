#include "troika/cli/automatic_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "troika/base/file.h"
#include "troika/cli/between.h"
#include "troika/cli/plan_file.h"
#include "troika/cli/refuse_argument.h"
#include "troika/plan/search/machine_levels.h"

namespace troika::cli {

namespace {

constexpr const char* kSeconds = "--profile-seconds";
constexpr const char* kPrecisions = "--precisions";
constexpr const char* kNoTensor = "--no-tensor";
constexpr const char* kMemoryBytes = "--memory-bytes";
constexpr const char* kBlockByBlock = "--block-by-block";
constexpr const char* kCluster = "--cluster";

}  // namespace

void add_automatic_options(CLI::App& command, AutomaticArguments& arguments,
                           const std::string& memory_help) {
  command
      .add_option(kSeconds, arguments.seconds,
                  "with --plan auto: seconds for the passes of each profile; default: 2")
      ->check(between(0, 3600));
  command
      .add_option(kPrecisions, arguments.precisions,
                  "with --plan auto: the precisions that the plan may have, as 32,bf16-mixed; "
                  "default: trainer.precision, and lower ones if the whole model does not fit")
      ->delimiter(',')
      ->allow_extra_args(false);  // so that the next word may be CONFIG
  command.add_flag(std::string("!") + kNoTensor, arguments.cuts_layers,
                   "do not consider plans with a tensor or a context axis");
  command.add_option(kMemoryBytes, arguments.memory_bytes, memory_help)->check(between(0, 1e18));
  command.add_flag(
      kBlockByBlock, arguments.block_by_block,
      "with --plan auto: measure the blocks of the model one by one, also where a step "
      "of the whole model fits");
}

void add_cluster_option(CLI::App& command, AutomaticArguments& arguments) {
  command.add_option(kCluster, arguments.cluster,
                     "with --plan auto: file that describes hosts, devices and links of the ranks, "
                     "and spare hosts for servers; docs/plan.md; default: as measured");
}

train::AutomaticPlanOptions options_of(const AutomaticArguments& arguments) {
  train::AutomaticPlanOptions options{.seconds = arguments.seconds,
                                      .precisions = arguments.precisions,
                                      .cuts_layers = arguments.cuts_layers,
                                      .block_by_block = arguments.block_by_block};
  if (arguments.memory_bytes >= 0) options.memory_bytes = arguments.memory_bytes;
  if (!arguments.cluster.empty()) {
    options.cluster = layout::Cluster::parse(read_file(arguments.cluster), arguments.cluster);
    plan::require_links(*options.cluster, arguments.cluster);
  }
  return options;
}

std::vector<std::string> words_of(const AutomaticArguments& arguments) {
  std::vector<std::string> words{"--plan", kAutomaticPlan, kSeconds,
                                 fmt::format("{}", arguments.seconds)};
  if (!arguments.precisions.empty()) {
    words.insert(words.end(),
                 {kPrecisions, fmt::format("{}", fmt::join(arguments.precisions, ","))});
  }
  if (!arguments.cuts_layers) words.emplace_back(kNoTensor);
  if (arguments.memory_bytes >= 0) {
    words.insert(words.end(), {kMemoryBytes, fmt::format("{}", arguments.memory_bytes)});
  }
  if (arguments.block_by_block) words.emplace_back(kBlockByBlock);
  if (!arguments.cluster.empty()) words.insert(words.end(), {kCluster, arguments.cluster});
  return words;
}

void require_no_automatic_options(const CLI::App& command, bool searches) {
  for (const char* option : {kSeconds, kPrecisions, kNoTensor, kMemoryBytes, kBlockByBlock}) {
    const bool is_of_search = option == kNoTensor || option == kMemoryBytes;
    if (command.count(option) == 0 || (searches && is_of_search)) continue;
    refuse_argument("plan", fmt::format("{} without --plan auto", option),
                    command.get_option(option)->results().front(), "both, or neither");
  }
}

void require_no_cluster(const AutomaticArguments& arguments) {
  if (arguments.cluster.empty()) return;
  refuse_argument("plan", fmt::format("{} without --plan auto", kCluster), arguments.cluster,
                  "both, or neither");
}

}  // namespace troika::cli
