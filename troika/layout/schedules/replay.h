// The times of a schedule's passes, and the activations they keep alive.
#pragma once

#include <vector>

#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

// Durations of a stage's passes, in any common unit.
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  // From the end of a pass until its output is on the next stage's rank. Only a delay: neither rank
  // is busy. Not applied between stages of one rank.
  double message = 0;
  // The time that a backward pass in one piece takes less than its two parts together.
  double saved_by_whole = 0;

  double backward() const { return backward_input + backward_weight - saved_by_whole; }
  // Returns the time of one pass: F, B, I or W.
  double of(ActionKind pass) const;
  bool operator==(const StageTimes&) const = default;
};

struct TimedPass {
  Action action;
  double begin = 0;
  double end = 0;
};

// Returns the passes (F, B, I and W) of each rank in order, each as early as this order and its
// dependencies allow. Passes that start together end together, after the sum of their durations.
// Sends, receives and other actions take no time, and their positions are ignored: messages leave
// as soon as they can. `times` has one entry per stage, or one for all. Throws the errors of
// Inventory, and Error(usage) naming ranks and actions if ranks deadlock.
std::vector<std::vector<TimedPass>> replay(const Schedule& schedule,
                                           const std::vector<StageTimes>& times);

// Returns for each rank the maximum number of (stage, micro-batch) pairs whose activations are
// alive at the same time, from the begin of F to the end of B or W.
std::vector<int> peak_activations(const Schedule& schedule);

}  // namespace troika::layout
