// The published pipeline schedules by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "troika/layout/schedules/orders.h"
#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

// The stages of each rank.
enum class StagePlacement {
  loop,  // rank r has stages r, r + ranks, r + 2 ranks, ...
  v      // rank r has stages r and 2 ranks - 1 - r
};

struct ScheduleRow {
  std::string_view name;
  std::string_view meaning;  // one line
  std::string_view source;
  StagePlacement placement = StagePlacement::loop;
  // Stages per rank: the default and the maximum.
  int chunks = 1;
  int most_chunks = 1;
  bool splits_backward = false;
  // The condition on the number of micro-batches for a number of ranks; empty: any from 1 on.
  std::string_view domain = {};
  bool (*takes)(const PipelineShape& shape) = nullptr;  // checks the domain
  Schedule (*order)(const PipelineShape& shape) = nullptr;
};

// The maximum number of pipeline ranks, and of passes (stages times micro-batches) in a schedule.
inline constexpr int kMostPipelineRanks = 4096;
inline constexpr int64_t kMostPipelinePasses = 1'000'000;

const std::vector<ScheduleRow>& schedule_table();
std::vector<std::string> schedule_names();

// Throws Error(usage) with the nearest known name if `name` is unknown.
const ScheduleRow& schedule_row(std::string_view name);

// Returns the shape; if `chunks` is 0, sets it to the row's default. Throws Error(usage) with the
// numbers for a shape outside of the schedule's domain, with another number of chunks, or with more
// stages than blocks.
PipelineShape require_domain(const ScheduleRow& row, PipelineShape shape);

// Returns a whole schedule: the row's order of passes, completed. Throws the errors of
// schedule_row() and require_domain().
Schedule make_schedule(std::string_view name, const PipelineShape& shape);

}  // namespace troika::layout
