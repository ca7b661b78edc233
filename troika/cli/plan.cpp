#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <limits>
#include <memory>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cli/automatic_arguments.h"
#include "troika/cli/commands.h"
#include "troika/cli/configuration.h"
#include "troika/cli/draw.h"
#include "troika/cli/plan_file.h"
#include "troika/cli/plan_search.h"
#include "troika/cli/session.h"
#include "troika/cli/step_report.h"
#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/plan/search/step_layout.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/automatic_plan.h"
#include "troika/train/run/run_group.h"

namespace troika::cli {

namespace {

struct PlanArguments {
  std::string file;
  std::string plan;
  std::string cluster;
  int64_t ranks = 0;  // 0: not given
  int64_t nodes = 0;  // 0: not given
  AutomaticArguments automatic;
  bool draws = false;
  DrawArguments draw;
  SearchArguments search;
};

// The number of processes that the configuration or the plan asks for.
int64_t configured_ranks(const train::TrainOptions& options, int64_t nodes) {
  if (!options.trainer.plan.empty()) {
    return layout::Plan::parse(options.trainer.plan, "trainer.plan").mesh.ranks();
  }
  const bool is_one = train::trains_in_threads(options);
  return nodes * (is_one ? 1 : std::max<int64_t>(1, options.trainer.devices));
}

layout::Cluster cluster_asked(const PlanArguments& arguments, const train::TrainOptions& options) {
  if (!arguments.cluster.empty()) {
    return layout::Cluster::parse(read_file(arguments.cluster), arguments.cluster);
  }
  const int64_t nodes =
      arguments.nodes > 0 ? arguments.nodes : std::max<int64_t>(1, options.trainer.num_nodes);
  const int64_t ranks = arguments.ranks > 0 ? arguments.ranks : configured_ranks(options, nodes);
  if (ranks % nodes != 0 || ranks > std::numeric_limits<int>::max()) {
    throw Error("plan", ErrorKind::usage,
                {.what = "ranks of a plan",
                 .got = fmt::format("{} on {} nodes", ranks, nodes),
                 .expected = "equally many on each node, at most 2^31 - 1",
                 .hint = "--cluster FILE describes nodes that differ"});
  }
  return layout::Cluster::uniform(static_cast<int>(nodes), static_cast<int>(ranks / nodes));
}

// Throws Error(usage) for arguments that have no effect on a search by --profile.
void require_search_alone(const PlanArguments& arguments,
                          const std::vector<std::string>& overrides) {
  std::string other;
  if (!arguments.file.empty()) other = arguments.file;
  if (!arguments.plan.empty()) other = "--plan " + arguments.plan;
  if (arguments.ranks > 0 || arguments.nodes > 0) other = "--ranks or --nodes";
  if (arguments.draws) other = "--draw";
  if (!overrides.empty()) other = overrides.front();
  const auto& search = arguments.search;
  if (!arguments.cluster.empty() && !(search.machines.empty() && search.bandwidths.empty())) {
    other =
        fmt::format("both --cluster and --{}", search.machines.empty() ? "bandwidth" : "machines");
  }
  if (other.empty()) return;
  throw Error("plan", ErrorKind::usage,
              {.what = "arguments beside --profile",
               .got = other,
               .expected = "--cluster or --machines, and the options of the search"});
}

// Profiles and searches on the ranks of a group.
int find_here(train::TrainOptions options, const cluster::Environment& environment,
              const AutomaticArguments& arguments) {
  check_memory(options);
  const auto group = join(options, environment);
  train::require_group_of(options, group);
  const auto dataset = data::make_dataset(options.data, data::Split::train);
  options.model = fit_model(options, *dataset);
  const auto automatic = train::find_plan(options, *dataset, group, options_of(arguments));
  if (group.rank() != 0) return 0;
  if (!automatic.forced.empty()) {
    fmt::print("# considered also {}, as the whole model does not fit without\n",
               fmt::join(automatic.forced, ", "));
  }
  std::string text;
  if (automatic.found.best) {
    const auto planned = train::with_found_plan(options, automatic, group);
    text = fmt::format("# run it with --data.global_batch_size={}\n{}",
                       planned.data.global_batch_size, planned.trainer.plan);
  } else {
    text = plan::layout_of(automatic.model, automatic.chosen()).text();
  }
  print_search(automatic.model, automatic.found, text);
  return 0;
}

int find_plan(const PlanArguments& arguments, const std::vector<std::string>& overrides) {
  if (arguments.ranks > 0 || arguments.nodes > 0 || arguments.draws) {
    throw Error("plan", ErrorKind::usage,
                {.what = "arguments beside --plan auto",
                 .got = arguments.draws ? "--draw" : "--ranks or --nodes",
                 .expected = "CONFIG, its options and --cluster, as it measures the ranks that it "
                             "has",
                 .hint = "troika profile CONFIG, then troika plan --profile FILE --cluster FILE"});
  }
  auto automatic = arguments.automatic;
  automatic.cluster = arguments.cluster;
  ConfigArguments configured;
  configured.file = arguments.file;
  return run_configured(
      "plan", configured, overrides,
      [&](train::TrainOptions options, const cluster::Environment& environment) {
        return find_here(std::move(options), environment, automatic);
      },
      words_of(automatic));
}

int run_plan(const PlanArguments& arguments, const std::vector<std::string>& overrides) {
  if (!arguments.search.profiles.empty()) {
    require_search_alone(arguments, overrides);
    auto search = arguments.search;
    search.cluster = arguments.cluster;
    search.memory_bytes = arguments.automatic.memory_bytes;
    search.cuts_layers = arguments.automatic.cuts_layers;
    return search_plan(search);
  }
  if (arguments.plan == kAutomaticPlan) return find_plan(arguments, overrides);
  if (arguments.draws && !arguments.draw.what.empty()) return draw_schedule(arguments.draw);
  train::TrainOptions options;
  auto table = train::make_table(options);
  read_configuration(table, arguments.file, overrides);
  if (!arguments.plan.empty()) take_plan(options, arguments.plan, overrides);
  const auto cluster = cluster_asked(arguments, options);
  const auto plan = train::resolve_plan(options, cluster);
  if (arguments.draws) return draw_schedule(arguments.draw, plan);
  for (const auto& line : split(trim(explain(plan)), '\n')) fmt::print("# {}\n", line);
  fmt::print("\n{}", plan.text());
  std::fflush(stdout);
  train::require_runnable(plan, cluster.ranks(), train::places_of_plan(options));
  return 0;
}

}  // namespace

Entry add_plan(CLI::App& app) {
  auto* command = app.add_subcommand("plan",
                                     "explain the plan of a configuration, and print it as text; "
                                     "search for plans; draw schedules");
  const auto arguments = std::make_shared<PlanArguments>();
  command->add_option("CONFIG,--config", arguments->file,
                      "configuration, as for train; default: the default options");
  command->add_option("--plan", arguments->plan,
                      "explain the plan in this file; auto: measure the model, and search for the "
                      "fastest plan of this run");
  add_automatic_options(*command, arguments->automatic,
                        "with --plan auto: memory of a rank, in bytes; default: its share of what "
                        "is available; with --profile: memory of a device; with PipeDream's cost "
                        "models, its memory for the copies that a stage stashes");
  auto* ranks = command
                    ->add_option("--ranks", arguments->ranks,
                                 "number of ranks; default: trainer.devices on each node")
                    ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  auto* nodes =
      command
          ->add_option(
              "--nodes", arguments->nodes,
              "number of machines, with equally many ranks on each; default: trainer.num_nodes")
          ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--cluster", arguments->cluster,
                   "file that describes hosts and devices, one rank on each device; docs/plan.md")
      ->excludes(ranks)
      ->excludes(nodes);
  add_draw_options(*command, arguments->draw);
  add_search_options(*command, arguments->search);
  command->allow_extras();
  command->footer("Any option of CONFIG may follow as --section.name=value.");
  return {command, [command, arguments] {
            arguments->draws = command->count("--draw") > 0;
            std::erase(arguments->draw.what, "");  // from --draw without a value
            if (arguments->plan != kAutomaticPlan) {
              require_no_automatic_options(*command, !arguments->search.profiles.empty());
            }
            return run_plan(*arguments, command->remaining());
          }};
}

}  // namespace troika::cli
