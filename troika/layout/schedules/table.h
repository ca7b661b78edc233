// The published pipeline schedules by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "troika/layout/schedule.h"
#include "troika/layout/schedules/orders.h"

namespace troika::layout {

// Which stages a rank has.
enum class Placement {
  loop,  // rank r has stages r, r + ranks, r + 2 ranks, ...
  v      // rank r has stages r and 2 ranks - 1 - r
};

struct ScheduleRow {
  std::string_view name;
  std::string_view meaning;  // one line
  std::string_view source;
  Placement placement = Placement::loop;
  // Stages on each rank: those it has when it is not told, and the most that it takes.
  int chunks = 1;
  int most_chunks = 1;
  bool splits_backward = false;
  // What the number of micro-batches must be for so many ranks; empty: any from 1 on.
  std::string_view domain = {};
  bool (*takes)(const PipelineShape& shape) = nullptr;  // by the domain
  Schedule (*order)(const PipelineShape& shape) = nullptr;
};

// The most ranks of a pipeline, and the most passes (stages times micro-batches) that schedules are
// made for.
inline constexpr int kMostPipelineRanks = 4096;
inline constexpr int64_t kMostPipelinePasses = 1'000'000;

const std::vector<ScheduleRow>& schedule_table();
std::vector<std::string> schedule_names();

// Throws Error(usage), naming the nearest, for a name that the table lacks.
const ScheduleRow& schedule_row(std::string_view name);

// The shape with the row's number of chunks where it has none. Throws Error(usage) with the numbers
// for a shape outside of the schedule's domain, with another number of chunks, or with more stages
// than blocks.
PipelineShape require_domain(const ScheduleRow& row, PipelineShape shape);

// A whole schedule: the row's order of passes, completed. Throws as schedule_row() and
// require_domain() do.
Schedule make_schedule(std::string_view name, const PipelineShape& shape);

}  // namespace troika::layout
