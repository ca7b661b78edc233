// How long a schedule takes and what it keeps in memory, by the times of its passes.
#pragma once

#include <vector>

#include "troika/layout/schedules/replay.h"

namespace troika::plan {

struct Simulation {
  // The passes of each rank in their order.
  std::vector<std::vector<layout::TimedPass>> ranks;
  // From the begin of the first pass of all to the end of the last one.
  double makespan = 0;
  // By rank: from the begin of its own first pass to the end of its own last one, and how much of
  // that it computes.
  std::vector<double> spans;
  std::vector<double> busy;
  // The rank with the longest own span; the first of them.
  size_t longest = 0;
  // Idle time of that rank within its own span, over that span (Qi et al. 2024, arXiv 2401.10241):
  // (cost - m (F + B + W)) / cost.
  double bubble_rate = 0;
  // By rank: the most pairs of a stage and a micro-batch whose activations are alive at a time,
  // from the begin of their forward pass to the end of their backward pass, or of its weight part.
  // Where ranks have V stages, each is 1/V of a rank's share of the model.
  std::vector<int> peak_activations;
};

// `times` is of every stage, or one for all. Messages are delays alone, and every action begins as
// soon as its rank's order and its inputs allow; see layout::replay(), whose errors this throws.
Simulation simulate(const layout::Schedule& schedule, const std::vector<layout::StageTimes>& times);

// Times by stage of ranks that each take `of_ranks` (one for each rank, or one for all) for a
// micro-batch: a rank's stages take equal parts of them, and their messages take as long as told.
std::vector<layout::StageTimes> stage_times(const layout::Schedule& schedule,
                                            const std::vector<layout::StageTimes>& of_ranks);

// How memory is counted under a limit. The unit is what a rank's share of the model keeps of one
// micro-batch.
struct MemoryModel {
  // What the input part of a backward pass frees of that; the weight part frees the rest. A whole
  // backward pass frees all at its end. For a transformer layer of width h with a heads and
  // sequences of s, (2h + 5as) / (34h + 5as) without recomputation (arXiv 2401.10241).
  double input_part_frees = 0.5;
};

// By rank: the most that is kept at a time.
std::vector<double> peak_memory(const layout::Schedule& schedule, const MemoryModel& model);

}  // namespace troika::plan
