#include "troika/cli/draw.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/plan/drawing.h"

namespace troika::cli {

namespace {

int count_of(const std::string& text, const char* what) {
  constexpr int64_t kMost = 1'000'000;
  const auto count = parse_int(text);
  if (!count || *count < 1 || *count > kMost) {
    throw Error("plan", ErrorKind::usage,
                {.what = fmt::format("{} of --draw", what),
                 .got = text,
                 .expected = fmt::format("a number from 1 to {}", kMost),
                 .hint = "--draw NAME STAGES MICRO_BATCHES, or --draw FILE"});
  }
  return static_cast<int>(*count);
}

int draw(const DrawArguments& arguments, const PipelineSchedule& made) {
  const auto simulation =
      plan::simulate(made.schedule, plan::stage_times(made.schedule, made.times));
  const auto title = fmt::format(
      "{}, {} stage{}{}, {} micro-batch{}: makespan {:.6g}, bubble rate {:.4f}", made.name,
      made.schedule.ranks.size(), made.schedule.ranks.size() == 1 ? "" : "s",
      made.chunks > 1 ? fmt::format(" of {} chunks", made.chunks) : "", made.micro_batches,
      made.micro_batches == 1 ? "" : "es", simulation.makespan, simulation.bubble_rate);
  fmt::print("{}\n{}", title, plan::draw_text(simulation, arguments.width));
  if (!arguments.svg.empty()) {
    write_file_atomically(arguments.svg, plan::draw_svg(simulation, title));
  }
  return 0;
}

}  // namespace

void add_draw_options(CLI::App& command, DrawArguments& arguments) {
  auto* option = command
                     .add_option("--draw", arguments.what,
                                 "draw a schedule of a pipeline: NAME STAGES MICRO_BATCHES, a file "
                                 "with a schedule or (.toml) a plan, or nothing for the plan of "
                                 "CONFIG or --plan; NAME: " +
                                     schedule_help())
                     ->expected(0, 3)
                     ->type_name("TEXT ...");
  command.add_option("--svg", arguments.svg, "with --draw: also write the picture to this file")
      ->needs(option);
  command
      .add_option("--width", arguments.width,
                  fmt::format("of --draw: columns of the terminal; default: {}", arguments.width))
      ->needs(option)
      ->check(CLI::Range(20, 100'000));
  for (auto* timing : add_timing_options(command, arguments.pipeline)) timing->needs(option);
}

int draw_schedule(const DrawArguments& arguments) {
  auto pipeline = arguments.pipeline;
  pipeline.schedule = arguments.what.front();
  if (arguments.what.size() == 1 && pipeline.schedule.ends_with(".toml")) {
    const auto plan = layout::Plan::parse(read_file(pipeline.schedule), pipeline.schedule);
    return draw_schedule(arguments, plan);
  }
  if (arguments.what.size() > 1) pipeline.stages = count_of(arguments.what[1], "stages");
  if (arguments.what.size() > 2) {
    pipeline.micro_batches = count_of(arguments.what[2], "micro-batches");
  }
  return draw(arguments, make_pipeline_schedule(pipeline));
}

int draw_schedule(const DrawArguments& arguments, const layout::Plan& plan) {
  plan.verify();
  return draw(arguments, pipeline_of(arguments.pipeline, plan.schedule, schedule_of(plan)));
}

}  // namespace troika::cli
