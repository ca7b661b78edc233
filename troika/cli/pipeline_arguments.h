// The options of `troika simulate` and `troika plan --draw` that describe a pipeline schedule.
#pragma once

#include <string>
#include <vector>

#include "troika/layout/schedules/table.h"
#include "troika/plan/simulator.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace troika::cli {

struct PipelineArguments {
  std::string schedule;
  int stages = 0;         // 0: not given
  int micro_batches = 0;  // 0: not given
  int chunks = 0;         // 0: not given
  int blocks = 0;         // 0: not given
  std::vector<std::string> times;
  double memory_limit = 0;  // 0: not given
  plan::MemoryModel memory;
};

// Returns help text with the accepted schedule names.
std::string schedule_help();

// Adds --chunks, --blocks, --times, --memory-limit and --input-part-frees.
std::vector<CLI::Option*> add_timing_options(CLI::App& command, PipelineArguments& arguments);

struct PipelineSchedule {
  std::string name;
  layout::Schedule schedule;
  int chunks = 1;  // the maximum on one rank
  int all_chunks = 1;
  int micro_batches = 1;
  std::vector<layout::StageTimes> times;  // one for each rank, or one for all
  plan::MemoryModel memory;
};

// Makes the schedule with the given name, the automatic one, or that of a file. Throws Error(usage)
// for missing or contradictory arguments, and where make_schedule(), automatic_schedule() and
// read_schedule() do.
PipelineSchedule make_pipeline_schedule(const PipelineArguments& arguments);

// Combines an existing schedule with the times and the memory model of the arguments. Throws
// Error(usage) if the schedule contradicts the arguments.
PipelineSchedule pipeline_of(const PipelineArguments& arguments, std::string name,
                             layout::Schedule schedule);

// Parses texts F,B,W,COMM: one for each rank or one for all. Throws Error(usage) for other text.
std::vector<layout::StageTimes> parse_times(const std::vector<std::string>& texts);

}  // namespace troika::cli
