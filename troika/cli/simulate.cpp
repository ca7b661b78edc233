// `troika simulate`: simulates the time and memory of a pipeline schedule, or a plan on a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "troika/base/file.h"
#include "troika/cli/commands.h"
#include "troika/cli/pipeline_arguments.h"
#include "troika/cli/refuse_argument.h"
#include "troika/cli/simulate_cluster.h"
#include "troika/plan/simulated_trace.h"
#include "troika/plan/simulator.h"

namespace troika::cli {

namespace {

struct SimulateArguments {
  PipelineArguments pipeline;
  ClusterArguments cluster;
  std::string json;
  std::string actions;
  std::string trace;
};

nlohmann::ordered_json as_json(const PipelineSchedule& made, const plan::Simulation& simulation,
                               const std::vector<double>& memory) {
  nlohmann::ordered_json times = nlohmann::ordered_json::array();
  for (const auto& one : made.times) {
    times.push_back({{"forward", one.forward},
                     {"backward_input", one.backward_input},
                     {"backward_weight", one.backward_weight},
                     {"message", one.message}});
  }
  return {{"schedule", made.name},
          {"stages", made.schedule.ranks.size()},
          {"chunks", made.chunks},
          {"micro_batches", made.micro_batches},
          {"times", times},
          {"makespan", simulation.makespan},
          {"bubble_rate", simulation.bubble_rate},
          {"peak_activations", simulation.peak_activations},
          {"spans", simulation.spans},
          {"busy", simulation.busy},
          {"peak_memory", memory}};
}

int simulate_schedule(const SimulateArguments& arguments) {
  const auto made = make_pipeline_schedule(arguments.pipeline);
  const auto simulation =
      plan::simulate(made.schedule, plan::stage_times(made.schedule, made.times));
  const auto memory = plan::peak_memory(made.schedule, made.memory);
  fmt::print("schedule          {}, {} stage{}{}, {} micro-batch{}\n", made.name,
             made.schedule.ranks.size(), made.schedule.ranks.size() == 1 ? "" : "s",
             made.chunks > 1 ? fmt::format(" of {} chunks", made.chunks) : "", made.micro_batches,
             made.micro_batches == 1 ? "" : "es");
  fmt::print("makespan          {:.6g}\n", simulation.makespan);
  fmt::print("longest own span  {:.6g}, of stage {}, which computes {:.6g} of it\n",
             simulation.spans[simulation.longest], simulation.longest,
             simulation.busy[simulation.longest]);
  fmt::print("bubble rate       {:.4f}\n", simulation.bubble_rate);
  fmt::print("peak activations  {}{}\n", fmt::join(simulation.peak_activations, " "),
             made.chunks > 1 ? fmt::format(", each of 1/{} of a stage", made.chunks) : "");
  fmt::print("peak memory       {:.6g} activations of a stage, where an input part frees {:.6g}\n",
             std::ranges::max(memory), made.memory.input_part_frees);
  if (!arguments.json.empty()) {
    write_file_atomically(arguments.json, as_json(made, simulation, memory).dump(2) + "\n");
  }
  if (!arguments.actions.empty()) write_file_atomically(arguments.actions, made.schedule.text());
  constexpr double kMillisecond = 1e-3;
  if (!arguments.trace.empty()) {
    write_file_atomically(arguments.trace, plan::trace_of(simulation, kMillisecond));
  }
  return 0;
}

int simulate(const SimulateArguments& arguments, const std::vector<std::string>& overrides) {
  const auto& cluster = arguments.cluster;
  if (!cluster.profile.empty()) {
    return simulate_cluster(cluster, arguments.json, arguments.trace, overrides);
  }
  if (arguments.pipeline.schedule.empty()) {
    refuse_argument("simulate", "--schedule", "none",
                    "a schedule, or a plan with --profile and --cluster");
  }
  if (!cluster.config.empty() || !overrides.empty()) {
    refuse_argument("simulate", "an argument",
                    cluster.config.empty() ? overrides.front() : cluster.config,
                    "none beside --schedule");
  }
  return simulate_schedule(arguments);
}

constexpr const char* kFooter =
    R"(A stage is what one of P ranks holds. B is the part of the backward pass for inputs, W the part for
weights; schedules that do not split it take B + W. A stage of V chunks takes 1/V of each time for
a chunk. COMM passes between the end of a pass and the begin of the next stage's on another rank;
nobody is busy meanwhile. Times are in any one unit.

  makespan          from the begin of the first pass of all to the end of the last
  own span          of a stage: from the begin of its own first pass to the end of its own last
  bubble rate       (span - busy) / span of the stage with the longest own span, where busy is
                    M (F + B + W): the definition of Zero Bubble, arXiv 2401.10241
  peak activations  of each stage: the most pairs of a chunk and a micro-batch whose activations are
                    alive, from the begin of F to the end of W, or of B where it is not split
  peak memory       of each stage, in activations of a whole stage: as before, but the input part of
                    a split backward pass has freed --input-part-frees of it at its end

--json writes these as makespan, bubble_rate, peak_activations, and spans, busy and peak_memory.

With --profile, --cluster and a plan, simulates the plan's steps on the cluster: docs/simulate.md.)";

}  // namespace

Entry add_simulate(CLI::App& app) {
  auto* command = app.add_subcommand(
      "simulate", "time a schedule of a pipeline, or simulate a plan on a cluster from a profile");
  const auto arguments = std::make_shared<SimulateArguments>();
  auto& pipeline = arguments->pipeline;
  auto timing = add_timing_options(*command, pipeline);
  timing.push_back(command->add_option("--schedule", pipeline.schedule, schedule_help()));
  timing.push_back(command
                       ->add_option("--stages", pipeline.stages,
                                    "P: number of ranks of the pipeline, with one stage each")
                       ->check(CLI::Range(1, layout::kMostPipelineRanks)));
  timing.push_back(command
                       ->add_option("--micro-batches", pipeline.micro_batches,
                                    "M: number of micro-batches of a step")
                       ->check(CLI::Range(1, 1'000'000)));
  command->add_option("--json", arguments->json, "file to write the results to");
  timing.push_back(
      command->add_option("--actions", arguments->actions,
                          "file to write the schedule's actions to, one line for each rank"));
  command->add_option("--trace", arguments->trace,
                      "file to write a Chrome trace to; without --profile, the times are in "
                      "milliseconds");
  for (auto* option : add_cluster_options(*command, arguments->cluster)) {
    for (auto* other : timing) option->excludes(other);
  }
  command->allow_extras();
  command->footer(kFooter);
  return {command, [command, arguments] { return simulate(*arguments, command->remaining()); }};
}

}  // namespace troika::cli
