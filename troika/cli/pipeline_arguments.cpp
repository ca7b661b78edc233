#include "troika/cli/pipeline_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cli/between.h"
#include "troika/cli/refuse_argument.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/plan/automatic.h"

namespace troika::cli {

namespace {

bool is_known(const std::string& name) {
  const auto names = layout::schedule_names();
  return name == plan::kAutomaticSchedule || std::ranges::find(names, name) != names.end();
}

// The shape of a schedule that has a name.
layout::PipelineShape shape_asked(const PipelineArguments& arguments) {
  if (arguments.stages == 0)
    refuse_argument("simulate", "--stages", "none", "the stages of the pipeline");
  if (arguments.micro_batches == 0) {
    refuse_argument("simulate", "--micro-batches", "none", "the micro-batches of a step");
  }
  return {.ranks = arguments.stages,
          .micro_batches = arguments.micro_batches,
          .chunks = arguments.chunks,
          .blocks = arguments.blocks};
}

layout::Schedule schedule_of_file(const std::string& file) {
  if (!std::filesystem::exists(file)) {
    auto names = layout::schedule_names();
    names.emplace_back(plan::kAutomaticSchedule);
    refuse_argument("simulate", "--schedule", file,
                    fmt::format("a file, or one of {}", fmt::join(names, ", ")),
                    "did you mean " + nearest(file, names) + "?");
  }
  return layout::read_schedule(read_file(file), file);
}

// Throws if a size given in the arguments differs from the schedule's.
void require_told(const PipelineArguments& arguments, const PipelineSchedule& made) {
  const auto require = [&](const char* option, int told, int found) {
    if (told == 0 || told == found) return;
    refuse_argument("simulate", option, std::to_string(told),
                    fmt::format("{}, as {} has", found, made.name));
  };
  require("--stages", arguments.stages, static_cast<int>(made.schedule.ranks.size()));
  require("--micro-batches", arguments.micro_batches, made.micro_batches);
  require("--chunks", arguments.chunks, made.chunks);
  if (arguments.blocks > 0 && arguments.blocks < made.all_chunks) {
    refuse_argument(
        "simulate", "--blocks", std::to_string(arguments.blocks),
        fmt::format("at least {}, the number of chunks of {}", made.all_chunks, made.name));
  }
}

void require_times(const std::vector<layout::StageTimes>& times, size_t ranks) {
  if (times.size() == 1 || times.size() == ranks) return;
  refuse_argument("simulate", "--times", fmt::format("{} of them", times.size()),
                  fmt::format("one for all stages, or {}: one for each", ranks));
}

}  // namespace

std::string schedule_help() {
  return fmt::format("{}, {}, or a file with a schedule (docs/schedules.md)",
                     fmt::join(layout::schedule_names(), ", "), plan::kAutomaticSchedule);
}

std::vector<CLI::Option*> add_timing_options(CLI::App& command, PipelineArguments& arguments) {
  std::vector<CLI::Option*> options;
  options.push_back(
      command
          .add_option("--chunks", arguments.chunks,
                      "V: chunks that each stage is cut into; default: the number of the schedule")
          ->check(CLI::Range(1, 1'000)));
  options.push_back(
      command
          .add_option("--blocks", arguments.blocks,
                      "blocks of the model; schedules with more chunks in all are refused")
          ->check(CLI::Range(1, 1'000'000)));
  options.push_back(
      command
          .add_option(
              "--times", arguments.times,
              "F,B,W,COMM: times of a stage's forward pass, of both parts of its backward pass, "
              "and of a message; once for all stages, or once for each; default: 1,1,1,0")
          ->take_all()
          ->delimiter('\0'));
  options.push_back(
      command
          .add_option(
              "--memory-limit", arguments.memory_limit,
              fmt::format("the most that a rank may keep, in activations of a whole stage for one "
                          "micro-batch; default: none, and 2 P for {}",
                          plan::kAutomaticSchedule))
          ->check(between(0.001, 1e6)));
  options.push_back(
      command
          .add_option(
              "--input-part-frees", arguments.memory.input_part_frees,
              "share of the activations that the input part of a backward pass frees, where "
              "memory is counted; default: 0.5")
          ->check(between(0, 1)));
  return options;
}

std::vector<layout::StageTimes> parse_times(const std::vector<std::string>& texts) {
  if (texts.empty()) return {layout::StageTimes{}};
  std::vector<layout::StageTimes> all;
  for (const auto& text : texts) {
    std::vector<double> values;
    for (const auto& word : split(text, ',')) {
      const auto value = parse_double(trim(word));
      if (!value || !std::isfinite(*value) || *value < 0) break;
      values.push_back(*value);
    }
    if (values.size() != 4 || split(text, ',').size() != 4 || values[0] + values[1] <= 0) {
      refuse_argument("simulate", "--times", text,
                      "F,B,W,COMM: four numbers from 0 on, F + B above 0");
    }
    all.push_back({values[0], values[1], values[2], values[3]});
  }
  return all;
}

PipelineSchedule pipeline_of(const PipelineArguments& arguments, std::string name,
                             layout::Schedule schedule) {
  PipelineSchedule made;
  made.name = std::move(name);
  made.schedule = std::move(schedule);
  made.times = parse_times(arguments.times);
  made.memory = arguments.memory;
  const layout::Inventory inventory(made.schedule);
  made.micro_batches = inventory.micro_batches;
  made.all_chunks = inventory.stages;
  const auto ranks = made.schedule.ranks.size();
  for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
    const auto chunks = std::ranges::count(inventory.rank_of, rank);
    made.chunks = std::max(made.chunks, static_cast<int>(chunks));
  }
  require_told(arguments, made);
  require_times(made.times, ranks);
  const double kept = std::ranges::max(plan::peak_memory(made.schedule, made.memory));
  constexpr double kRounding = 1e-9;
  if (arguments.memory_limit > 0 && kept > arguments.memory_limit + kRounding) {
    refuse_argument("simulate", "--memory-limit", fmt::format("{:g}", arguments.memory_limit),
                    fmt::format("at least {:g}, which schedule {} keeps", kept, made.name));
  }
  return made;
}

PipelineSchedule make_pipeline_schedule(const PipelineArguments& arguments) {
  const auto& name = arguments.schedule;
  if (!is_known(name)) return pipeline_of(arguments, name, schedule_of_file(name));
  const auto shape = shape_asked(arguments);
  if (name != plan::kAutomaticSchedule) {
    return pipeline_of(arguments, name, layout::make_schedule(name, shape));
  }
  const auto times = parse_times(arguments.times);
  require_times(times, static_cast<size_t>(shape.ranks));
  const double limit = arguments.memory_limit > 0 ? arguments.memory_limit : 2.0 * shape.ranks;
  return pipeline_of(arguments, name,
                     plan::automatic_schedule(shape, times, limit, arguments.memory));
}

}  // namespace troika::cli
