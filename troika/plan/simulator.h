// The duration and memory of a schedule, simulated from the times of its passes.
#pragma once

#include <vector>

#include "troika/layout/schedules/replay.h"

namespace troika::plan {

struct Simulation {
  // The passes of each rank, in order.
  std::vector<std::vector<layout::TimedPass>> ranks;
  // From the begin of the first pass on any rank to the end of the last one.
  double makespan = 0;
  // By rank: the time from the begin of its first pass to the end of its last one, and the part of
  // this time in which it computes.
  std::vector<double> spans;
  std::vector<double> busy;
  // The rank with the longest span; the first one of several.
  size_t longest = 0;
  // The idle time of that rank within its span, divided by the span (Qi et al. 2024, arXiv
  // 2401.10241): (cost - m (F + B + W)) / cost.
  double bubble_rate = 0;
  // By rank: the maximum number of (stage, micro-batch) pairs whose activations are alive at the
  // same time, from the begin of their forward pass to the end of their backward pass or its weight
  // part. A stage counts as one, so with V stages per rank a rank's whole share of the model is V
  // pairs.
  std::vector<int> peak_activations;
};

// `times` has one entry per stage, or one for all. Messages are only delays, and every action
// begins as soon as its rank's order and its inputs allow. See layout::replay(); throws its errors.
Simulation simulate(const layout::Schedule& schedule, const std::vector<layout::StageTimes>& times);

// Returns times per stage from `of_ranks`, the times of each rank (or one entry for all) for a
// micro-batch: a rank's stages take equal parts of its times. Message times are unchanged.
std::vector<layout::StageTimes> stage_times(const layout::Schedule& schedule,
                                            const std::vector<layout::StageTimes>& of_ranks);

// The memory model for a limit. The unit is the activations that a rank's share of the model keeps
// for one micro-batch.
struct MemoryModel {
  // The fraction that the input part of a backward pass frees; the weight part frees the rest. A
  // whole backward pass frees everything at its end. For a transformer layer of width h with a
  // heads and sequences of length s, it is (2h + 5as) / (34h + 5as) without recomputation (arXiv
  // 2401.10241).
  double input_part_frees = 0.5;
};

// Returns for each rank the maximum memory in use.
std::vector<double> peak_memory(const layout::Schedule& schedule, const MemoryModel& model);

}  // namespace troika::plan
