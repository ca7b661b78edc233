#include "troika/cli/plan_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cli/between.h"
#include "troika/cli/refuse_argument.h"
#include "troika/cli/step_report.h"
#include "troika/plan/search/machine_levels.h"
#include "troika/plan/search/published.h"
#include "troika/plan/search/step_layout.h"

namespace troika::cli {

namespace {

using Json = nlohmann::ordered_json;
using plan::PublishedPlan;

// Bounds the time of a search.
constexpr int kMostSearchedDevices = 4096;

layout::Cluster read_cluster(const std::string& file) {
  return layout::Cluster::parse(read_file(file), file, kMostSearchedDevices);
}

std::vector<plan::MachineLevel> levels_of(const SearchArguments& arguments) {
  if (!arguments.cluster.empty()) {
    return plan::machine_levels(read_cluster(arguments.cluster), arguments.cluster);
  }
  if (arguments.machines.empty() || arguments.machines.size() != arguments.bandwidths.size()) {
    refuse_argument(
        "plan", "--machines and --bandwidth",
        fmt::format("{} and {} numbers", arguments.machines.size(), arguments.bandwidths.size()),
        "a number of each for every level, the innermost first", "or --cluster FILE, docs/plan.md");
  }
  std::vector<plan::MachineLevel> levels;
  for (size_t i = 0; i < arguments.machines.size(); ++i) {
    levels.push_back({arguments.machines[i], arguments.bandwidths[i]});
  }
  return levels;
}

plan::PublishedOptions options_of(const SearchArguments& arguments) {
  plan::PublishedOptions options{.model = arguments.cost_model == "pipedream-max"
                                              ? plan::PublishedModel::max
                                              : plan::PublishedModel::sum,
                                 .levels = levels_of(arguments),
                                 .straight = arguments.straight,
                                 .fewer_machines = arguments.fewer_machines};
  if (arguments.memory_bytes >= 0) options.memory_bytes = arguments.memory_bytes;
  if (arguments.compression_ratio >= 0) options.compression_ratio = arguments.compression_ratio;
  return options;
}

Json stages_json(const layout::Profile& profile, const PublishedPlan& plan) {
  Json stages = Json::array();
  for (const auto& stage : plan.stages) {
    Json nodes = Json::array();
    for (const size_t block : stage.blocks) nodes.push_back(profile.blocks[block].name);
    stages.push_back({{"replicas", stage.replicas}, {"nodes", nodes}});
  }
  return stages;
}

Json as_json(const layout::Profile& profile, const std::string& cost_model,
             const PublishedPlan& plan) {
  Json json{{"cost_model", cost_model}, {"feasible", plan.feasible}};
  json["seconds_per_minibatch"] = plan.feasible ? Json(plan.seconds_per_minibatch) : Json(nullptr);
  json["data_parallel_seconds"] = plan.data_parallel_seconds;
  json["lower_bound"] = plan.lower_bound;
  json["optimal"] = plan.is_optimal;
  json["cuts"] = plan.cuts;
  json["stages"] = stages_json(profile, plan);
  return json;
}

void print_stages(const layout::Profile& profile, const PublishedPlan& plan) {
  std::vector<int> replicas;
  for (const auto& stage : plan.stages) replicas.push_back(stage.replicas);
  fmt::print("replicas     {}\n", fmt::join(replicas, "-"));
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const auto& blocks = plan.stages[i].blocks;
    double seconds = 0, bytes = 0;
    for (const size_t block : blocks) {
      seconds += profile.blocks[block].seconds();
      bytes += profile.blocks[block].parameter_bytes;
    }
    fmt::print("stage {:<6} {} x {:.6g} s, parameters {}: {} block{}, {} to {}\n", i,
               plan.stages[i].replicas, seconds, human_bytes(bytes), blocks.size(),
               blocks.size() == 1 ? "" : "s", profile.blocks[blocks.front()].name,
               profile.blocks[blocks.back()].name);
  }
}

void print_times(const PublishedPlan& plan) {
  fmt::print("time         {:.9g} s for each minibatch, {}\n", plan.seconds_per_minibatch,
             plan.is_optimal ? "the least of this cost model"
                             : fmt::format("of {} cuts; no plan takes less than {:.9g} s",
                                           plan.cuts, plan.lower_bound));
  fmt::print("one stage    {:.9g} s with replicas of the whole model, {:.3g} times as much\n",
             plan.data_parallel_seconds, plan.data_parallel_seconds / plan.seconds_per_minibatch);
}

}  // namespace

void add_search_options(CLI::App& command, SearchArguments& arguments) {
  auto* profile = command.add_option(
      "--profile", arguments.profiles,
      "search for the best plan of the model in this file, which has the times and bytes of its "
      "blocks; repeat it for each precision and size of micro-batches; docs/plan.md");
  command
      .add_option("--cost-model", arguments.cost_model,
                  "with --profile: troika; pipedream-sum, as in PipeDream's released optimizer; or "
                  "pipedream-max, as in its papers")
      ->check(CLI::IsMember({"troika", "pipedream-sum", "pipedream-max"}))
      ->needs(profile);
  command
      .add_option("--machines", arguments.machines,
                  "with --profile: number of machines at each level of the network, innermost "
                  "first, for example 4,4")
      ->delimiter(',')
      ->needs(profile);
  command
      .add_option(
          "--bandwidth", arguments.bandwidths,
          "with --machines: bytes per second of the links at each level, for example 12e9,1.25e9")
      ->delimiter(',')
      ->check(between(1, 1e18))
      ->needs(profile);
  command
      .add_flag("--straight", arguments.straight,
                "with --profile: one stage on every machine, without replicas")
      ->needs(profile);
  command
      .add_flag("--fewer-machines", arguments.fewer_machines,
                "with --profile: machines may stay idle")
      ->needs(profile);
  command
      .add_option("--compression-ratio", arguments.compression_ratio,
                  "with --profile: factor by which activations are compressed for transfers; with "
                  "PipeDream's cost models, transfers take no time by default")
      ->check(between(1e-12, 1e18))
      ->needs(profile);
  command
      .add_option(
          "--global-batch", arguments.global_batch,
          "with --profile: samples of an optimizer step; default: one micro-batch on each device")
      ->check(between(1e-12, 1e18))
      ->needs(profile);
  command.add_option("--json", arguments.json, "with --profile: file to write the result to")
      ->needs(profile);
}

namespace {

// The levels of --machines as a cluster: up to three, of devices of a group, groups and hosts.
layout::Cluster cluster_of(const SearchArguments& arguments) {
  if (!arguments.cluster.empty()) {
    auto cluster = read_cluster(arguments.cluster);
    plan::require_links(cluster, arguments.cluster);
    return cluster;
  }
  auto levels = levels_of(arguments);
  constexpr size_t kMostLevels = 3;
  if (levels.size() > kMostLevels) {
    refuse_argument("plan", "levels of --machines", std::to_string(levels.size()),
                    "at most 3 with the cost model troika");
  }
  int64_t devices = 1;
  for (const auto& level : levels) {
    if (level.machines < 1) {
      refuse_argument("plan", "a level of --machines", std::to_string(level.machines),
                      "a number > 0");
    }
    devices *= level.machines;
    if (devices > kMostSearchedDevices) {
      refuse_argument("plan", "devices of --machines", std::to_string(devices),
                      fmt::format("at most {}", kMostSearchedDevices));
    }
  }
  const int hosts = levels.back().machines;
  auto cluster = layout::Cluster::uniform(hosts, static_cast<int>(devices) / hosts);
  cluster.network.bandwidth = levels.back().bandwidth;
  if (levels.size() == 2) cluster.group.bandwidth = levels[0].bandwidth;
  if (levels.size() < kMostLevels) return cluster;
  cluster.group.bandwidth = levels[0].bandwidth;
  cluster.host.bandwidth = levels[1].bandwidth;
  cluster.devices.clear();
  for (int host = 0; host < hosts; ++host) {
    for (int group = 0; group < levels[1].machines; ++group) {
      cluster.devices.push_back({.host = host, .count = levels[0].machines, .group = group});
    }
  }
  return cluster;
}

int search_own(const SearchArguments& arguments, std::vector<layout::Profile> profiles) {
  if (arguments.fewer_machines) {
    refuse_argument("plan", "--fewer-machines", "it", "no such option with the cost model troika",
                    "it leaves devices idle where that is faster");
  }
  plan::StepProblem problem{.profiles = std::move(profiles),
                            .cluster = cluster_of(arguments),
                            .global_batch = arguments.global_batch,
                            .straight = arguments.straight,
                            .cuts_layers = arguments.cuts_layers};
  if (problem.global_batch == 0) {
    problem.global_batch = problem.profiles.front().micro_batch * problem.cluster.ranks();
  }
  if (arguments.memory_bytes >= 0) problem.memory_bytes = arguments.memory_bytes;
  if (arguments.compression_ratio >= 0) problem.compression_ratio = arguments.compression_ratio;
  const plan::StepModel model(std::move(problem));
  const auto found = plan::search_steps(model);
  print_search(model, found,
               plan::layout_of(model, found.best ? *found.best : *found.nearest).text());
  if (!arguments.json.empty()) {
    write_file_atomically(arguments.json, search_json(model, found).dump(2) + "\n");
  }
  return 0;
}

int search_published(const SearchArguments& arguments, const layout::Profile& profile) {
  if (arguments.global_batch > 0) {
    refuse_argument("plan", "--global-batch", fmt::format("{}", arguments.global_batch),
                    "no such option with cost models of PipeDream",
                    "they have no steps, but a minibatch after the other");
  }
  if (!arguments.cuts_layers) {
    refuse_argument("plan", "--no-tensor", "it", "no such option with cost models of PipeDream",
                    "they have no tensor axis");
  }
  auto options = options_of(arguments);
  const auto found = plan::plan_published(profile, options);
  auto json = as_json(profile, arguments.cost_model, found);
  fmt::print("cost model   {}\n", arguments.cost_model);
  if (!arguments.cluster.empty()) {
    fmt::print(
        "cluster      {}: its numbers of devices and bandwidths alone, since this cost model "
        "has no memory, FLOPS or latencies of devices\n",
        arguments.cluster);
  }
  if (found.feasible) {
    print_times(found);
    print_stages(profile, found);
  } else if (!found.least_memory_bytes) {
    fmt::print("no plan      a stage on each of the machines needs more places to cut than {}\n",
               found.cuts - 1);
  } else {
    TROIKA_CHECK(options.memory_bytes, "without a limit of memory, these cuts fit");
    fmt::print("does not fit {} bytes for stashed copies; the nearest plan needs {:.0f}:\n",
               *options.memory_bytes, *found.least_memory_bytes);
    options.memory_bytes = found.least_memory_bytes;
    const auto nearest = plan::plan_published(profile, options);
    print_times(nearest);
    print_stages(profile, nearest);
    json["nearest"] = as_json(profile, arguments.cost_model, nearest);
    json["nearest"]["memory_bytes"] = *found.least_memory_bytes;
  }
  if (!arguments.json.empty()) write_file_atomically(arguments.json, json.dump(2) + "\n");
  return 0;
}

}  // namespace

int search_plan(const SearchArguments& arguments) {
  std::vector<layout::Profile> profiles;
  for (const auto& file : arguments.profiles) {
    profiles.push_back(layout::Profile::parse(read_file(file), file));
  }
  if (arguments.cost_model == "troika") return search_own(arguments, std::move(profiles));
  if (profiles.size() > 1) {
    refuse_argument("plan", "files of --profile", std::to_string(profiles.size()),
                    "one with cost models of PipeDream");
  }
  return search_published(arguments, profiles.front());
}

}  // namespace troika::cli
