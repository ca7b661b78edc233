// The options by which `troika simulate` and `troika plan --draw` are told a schedule of a
// pipeline.
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
  int stages = 0;         // 0: not told
  int micro_batches = 0;  // 0: not told
  int chunks = 0;         // 0: not told
  int blocks = 0;         // 0: not told
  std::vector<std::string> times;
  double memory_limit = 0;  // 0: not told
  plan::MemoryModel memory;
};

// What may be given as the name of a schedule.
std::string schedule_help();

// --chunks, --blocks, --times, --memory-limit and --input-part-frees.
std::vector<CLI::Option*> add_timing_options(CLI::App& command, PipelineArguments& arguments);

struct PipelineSchedule {
  std::string name;
  layout::Schedule schedule;
  int chunks = 1;  // the most on one rank
  int all_chunks = 1;
  int micro_batches = 1;
  std::vector<layout::StageTimes> times;  // of each rank, or one for all
  plan::MemoryModel memory;
};

// The schedule of that name, the automatic one, or that of a file. Throws Error(usage) for
// arguments that are missing or do not go together, and as make_schedule(), automatic_schedule()
// and read_schedule() do.
PipelineSchedule make_pipeline_schedule(const PipelineArguments& arguments);

// A schedule that is there already, with what the arguments say of times and memory. Throws
// Error(usage) where it contradicts the arguments.
PipelineSchedule pipeline_of(const PipelineArguments& arguments, std::string name,
                             layout::Schedule schedule);

// Reads one F,B,W,COMM a rank, or one for all. Throws Error(usage) for what is no such text.
std::vector<layout::StageTimes> parse_times(const std::vector<std::string>& texts);

}  // namespace troika::cli
