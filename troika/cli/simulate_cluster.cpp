#include "troika/cli/simulate_cluster.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/config.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cli/between.h"
#include "troika/cli/configuration.h"
#include "troika/cli/refuse_argument.h"
#include "troika/cli/simulated_results.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/run_trace.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/model_sizes.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::cli {

namespace {

using layout::Algorithm;

const std::vector<std::pair<std::string, Algorithm>> kAlgorithms{
    {"auto", Algorithm::automatic},
    {"ring", Algorithm::ring},
    {"recursive_doubling", Algorithm::recursive_doubling},
    {"rabenseifner", Algorithm::rabenseifner},
    {"double_tree", Algorithm::double_tree},
    {"hierarchical", Algorithm::hierarchical}};

// By which a device may be slower.
constexpr double kMostFactor = 1e6;

std::pair<int, double> parse_slow(const std::string& text) {
  const auto words = split(text, ',');
  if (words.size() == 2) {
    const auto rank = parse_int(trim(words[0]));
    const auto factor = parse_double(trim(words[1]));
    if (rank && *rank >= 0 && *rank <= 1'000'000 && factor && *factor > 0 &&
        *factor <= kMostFactor) {
      return {static_cast<int>(*rank), *factor};
    }
  }
  refuse_argument("simulate", "--slow", text,
                  "RANK,FACTOR: a rank, and a factor above 0 and at most 10^6");
}

struct AskedPlan {
  layout::Plan plan;
  layout::PlanPlaces places;
};

// A profile without a name is of the configured model if it has as many blocks and parameters.
void require_profile_of(const nn::ModelOptions& model, const layout::Profile& profile,
                        const std::string& file) {
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    refuse_argument("simulate", "--profile", fmt::format("{}, of {}", file, got), expected,
                    "troika profile measures one, and --plan takes plans of other models");
  };
  if (!profile.model.name.empty()) {
    if (profile.model.name == model.name) return;
    refuse(profile.model.name, fmt::format("a profile of {}, the configured model", model.name));
  }
  const auto sizes = train::model_sizes(model);
  if (profile.blocks.size() != sizes.blocks) {
    refuse(fmt::format("{} blocks", profile.blocks.size()),
           fmt::format("{}, those of {}, the configured model", sizes.blocks, model.name));
  }
  if (!plan::may_have(profile, sizes.parameters)) {
    refuse("another number of parameters",
           fmt::format("{}, those of {}, the configured model", sizes.parameters, model.name));
  }
}

// Throws Error(usage) for options of a run that has other devices than the cluster.
void require_devices_of(const train::TrainOptions& options, const layout::Cluster& cluster,
                        const std::string& file) {
  const auto& trainer = options.trainer;
  const int64_t nodes = std::ssize(cluster.hosts);
  const std::string hint = "leave it at -1 for those of the cluster";
  if (trainer.num_nodes != -1 && trainer.num_nodes != nodes) {
    refuse_argument("simulate", "trainer.num_nodes", std::to_string(trainer.num_nodes),
                    fmt::format("{}, the hosts with devices of {}", nodes, file), hint);
  }
  if (trainer.devices == -1 || train::trains_in_threads(options)) return;
  std::vector<int64_t> devices(cluster.hosts.size(), 0);
  for (const auto& row : cluster.devices) devices[static_cast<size_t>(row.host)] += row.count;
  for (size_t host = 0; host < devices.size(); ++host) {
    if (trainer.devices == devices[host]) continue;
    refuse_argument(
        "simulate", "trainer.devices", std::to_string(trainer.devices),
        fmt::format("{}, the devices of host {} of {}", devices[host], cluster.hosts[host], file),
        hint);
  }
}

// Throws Error(usage) for options of a run whose micro-batches have other samples than the
// profile's.
void require_batch_of(const train::TrainOptions& options, const layout::Plan& plan,
                      const layout::Profile& profile, const std::string& file) {
  const int shares = plan.mesh.sample_shares();
  const int64_t batch = train::global_batch(options, shares);
  if (static_cast<double>(batch) == profile.micro_batch * shares) return;
  const bool is_whole = options.data.global_batch_size > 0;
  refuse_argument(
      "simulate", is_whole ? "data.global_batch_size" : "data.batch_size",
      std::to_string(is_whole ? batch : options.data.batch_size),
      fmt::format("{:g}, since {} has micro-batches of {:g} samples on each of {} replica{}",
                  profile.micro_batch * (is_whole ? shares : 1), file, profile.micro_batch, shares,
                  shares == 1 ? "" : "s"),
      "troika profile CONFIG --micro-batch N measures others");
}

AskedPlan plan_asked(const ClusterArguments& arguments, const layout::Cluster& cluster,
                     const layout::Profile& profile, const std::vector<std::string>& overrides) {
  if (!arguments.plan.empty()) {
    if (!overrides.empty())
      refuse_argument("simulate", "an argument", overrides.front(), "none beside --plan");
    if (!arguments.config.empty())
      refuse_argument("simulate", "CONFIG", arguments.config, "none beside --plan");
    const auto text = read_file(arguments.plan);
    return {layout::Plan::parse(text, arguments.plan, cluster.ranks()),
            layout::PlanPlaces(text, arguments.plan)};
  }
  if (arguments.config.empty() && overrides.empty()) {
    refuse_argument("simulate", "--plan", "none", "a file with a plan, or CONFIG",
                    "troika plan CONFIG writes one");
  }
  train::TrainOptions options;
  auto table = train::make_table(options);
  read_configuration(table, arguments.config, overrides);
  require_profile_of(options.model, profile, arguments.profile);
  require_devices_of(options, cluster, arguments.cluster);
  AskedPlan asked{train::resolve_plan(options, cluster), {}};
  require_batch_of(options, asked.plan, profile, arguments.profile);
  return asked;
}

plan::SweptRun run_asked(const ClusterArguments& arguments,
                         const std::vector<std::string>& overrides) {
  plan::SweptRun asked;
  auto& run = asked.run;
  asked.profile = layout::Profile::parse(read_file(arguments.profile), arguments.profile);
  if (arguments.cluster.empty()) {
    refuse_argument("simulate", "--cluster", "none", "a file with hosts, devices and links",
                    "docs/plan.md#cluster");
  }
  const auto cluster = layout::Cluster::parse(read_file(arguments.cluster), arguments.cluster);
  auto plan = plan_asked(arguments, cluster, asked.profile, overrides);
  run.plan = std::move(plan.plan);
  run.places = plan.places;
  asked.work.places = std::move(plan.places);
  run.cluster = plan::with_measured_links(cluster, asked.profile);
  run.reference_flops = asked.profile.device_flops;
  run.overlap = asked.profile.in_step.overlap;
  run.all_reduce = std::ranges::find(kAlgorithms, arguments.all_reduce,
                                     &std::pair<std::string, Algorithm>::first)
                       ->second;
  run.disturbances = arguments.disturbances;
  if (!arguments.stragglers.empty()) {
    run.disturbances.straggler_share = arguments.stragglers[0];
    run.disturbances.straggler_factor = arguments.stragglers[1];
    const double share = arguments.stragglers[0], factor = arguments.stragglers[1];
    if (!(share >= 0 && share <= 1 && factor > 0 && factor <= kMostFactor)) {
      refuse_argument("simulate", "--stragglers", fmt::format("{:g} {:g}", share, factor),
                      "a share of devices from 0 to 1, and a factor above 0 and at most 10^6");
    }
  }
  auto& slow = run.disturbances.slow_ranks;
  for (const auto& text : arguments.slow) {
    const auto given = parse_slow(text);
    if (std::ranges::count(slow, given.first, &std::pair<int, double>::first) > 0) {
      refuse_argument("simulate", "--slow", text, "each rank once");
    }
    slow.push_back(given);
  }
  // Between drains of a pipeline, and of other steps that overlap.
  constexpr int kBetweenDrains = 100, kOverlapping = 20;
  const int overlapping = run.plan.is_asynchronous() ? kBetweenDrains : kOverlapping;
  run.steps = arguments.steps > 0 ? arguments.steps : run.overlaps_steps() ? overlapping : 1;
  if ((arguments.samples > 0 || arguments.evaluations > 0) && !run.plan.steps_on_all_samples()) {
    refuse_argument("simulate", arguments.samples > 0 ? "--samples" : "--evaluations",
                    "a plan of strategy " + run.plan.strategy, "one of strategy sandblaster");
  }
  run.batch_micro_batches = arguments.samples / asked.profile.micro_batch;
  run.evaluations = std::max(arguments.evaluations, 1);
  asked.work.optimizer_bytes_per_second = arguments.optimizer_rate;
  asked.work.pass_overhead = arguments.pass_overhead;
  return asked;
}

nlohmann::ordered_json swept(const plan::SweptRun& asked, const std::string& text) {
  const auto range = plan::SweepRange::parse(text);
  if (range.what == plan::SweepRange::What::devices) {
    return show(plan::sweep_devices(asked, range.values));
  }
  return show(plan::sweep_micro_batches(asked, range.values));
}

}  // namespace

std::vector<CLI::Option*> add_cluster_options(CLI::App& command, ClusterArguments& arguments) {
  std::vector<CLI::Option*> options;
  const auto add = [&](const char* name, auto& value, const std::string& help) {
    options.push_back(command.add_option(name, value, help));
    return options.back();
  };
  const auto times = between(0, 1e12), positive = between(1e-12, 1e12);
  command.add_option("CONFIG", arguments.config,
                     "with --profile: a configuration whose plan is simulated, as for troika plan");
  add("--plan", arguments.plan, "file with a plan, instead of CONFIG");
  auto* profile = command.add_option(
      "--profile", arguments.profile,
      "file with times and bytes of the model's blocks: simulates a plan on a cluster");
  add("--cluster", arguments.cluster, "file with hosts, devices and links; docs/plan.md");
  add("--steps", arguments.steps,
      "steps to simulate; default: 1, without flushes 100, with servers without a barrier 20")
      ->check(CLI::Range(1, 100'000));
  std::vector<std::string> names;
  for (const auto& [name, algorithm] : kAlgorithms) names.push_back(name);
  add("--all-reduce", arguments.all_reduce, "algorithm of all-reduces; default: auto")
      ->check(CLI::IsMember(names));
  add("--optimizer-rate", arguments.optimizer_rate,
      "bytes of parameters that the optimizer updates per second; default: as in the profile")
      ->check(positive);
  add("--pass-overhead", arguments.pass_overhead,
      "seconds of a pass of a stage that do not depend on the number of samples; default: 0")
      ->check(times);
  add("--samples", arguments.samples,
      "sandblaster: samples of a pass; default: a micro-batch of the profile for each portion")
      ->check(positive);
  add("--evaluations", arguments.evaluations,
      "sandblaster: passes of an iteration, one for each point of its line search; default: 1")
      ->check(CLI::Range(1, 1000));
  add("--jitter", arguments.disturbances.jitter,
      "standard deviation of the time of a pass, as a fraction of the time; default: 0")
      ->check(between(0, 10));
  add("--stragglers", arguments.stragglers,
      "SHARE FACTOR: each device is slow with the probability SHARE, and takes FACTOR times as "
      "long")
      ->expected(2);
  add("--slow", arguments.slow, "RANK,FACTOR: a rank takes so many times as long")
      ->take_all()
      ->delimiter('\0');
  add("--seed", arguments.disturbances.seed, "of jitter, stragglers and failures; default: 0");
  auto* mean = add("--mean-between-failures", arguments.failures.mean_between_failures,
                   "mean seconds between failures of the run: also simulates goodput");
  mean->check(positive);
  add("--failure-shape", arguments.failures.shape,
      "shape of the Weibull distribution of times between failures; default: 1, exponential")
      ->check(between(0.1, 10))
      ->needs(mean);
  add("--checkpoint-interval", arguments.failures.checkpoint_interval,
      "seconds between checkpoints; default: 600")
      ->check(times)
      ->needs(mean);
  add("--checkpoint-seconds", arguments.failures.checkpoint_seconds,
      "seconds for which a checkpoint stops training; default: 0")
      ->check(times)
      ->needs(mean);
  add("--restart-seconds", arguments.failures.restart_seconds,
      "seconds from a failure until training continues; default: 0")
      ->check(times)
      ->needs(mean);
  add("--sweep", arguments.sweep,
      "print a table for devices=1..1024 or micro_batches=1..64 (doubling), FROM..TO/STEP, or a "
      "list; devices or micro_batches alone: 1..1024")
      ->excludes(mean);
  for (auto* option : options) option->needs(profile);
  options.push_back(profile);
  return options;
}

int simulate_cluster(const ClusterArguments& arguments, const std::string& json,
                     const std::string& trace, const std::vector<std::string>& overrides) {
  auto asked = run_asked(arguments, overrides);
  nlohmann::ordered_json results;
  if (!arguments.sweep.empty()) {
    if (!trace.empty()) refuse_argument("simulate", "--trace", trace, "none with --sweep");
    results = swept(asked, arguments.sweep);
  } else {
    auto& run = asked.run;
    run.stages = plan::stage_work(asked.profile, run.plan, asked.work);
    run.records_trace = !trace.empty();
    const auto simulation = plan::simulate_run(run);
    if (!trace.empty()) write_file_atomically(trace, plan::trace_of(simulation));
    results = show(asked, simulation);
    if (std::isfinite(arguments.failures.mean_between_failures)) {
      auto failures = arguments.failures;
      failures.seed = run.disturbances.seed;
      results["goodput"] = show(plan::simulate_goodput(failures, simulation.step_seconds));
    }
  }
  if (!json.empty()) write_file_atomically(json, results.dump(2) + "\n");
  return 0;
}

}  // namespace troika::cli
