// When the passes of a schedule begin and end, and what they keep alive.
#pragma once

#include <vector>

#include "troika/layout/schedule.h"

namespace troika::layout {

// How long the passes of a stage take, in any one unit of time.
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  // From the end of a pass until its output is on the rank of the next stage. A delay alone:
  // neither rank is busy meanwhile. Nothing between stages of one rank.
  double message = 0;

  double backward() const { return backward_input + backward_weight; }
  bool operator==(const StageTimes&) const = default;
};

struct TimedPass {
  Action action;
  double begin = 0;
  double end = 0;
};

// The passes (F, B, I and W) of each rank in their order, each as early as that order and what it
// needs allow. Passes that begin together end together, after their times' sum. Sends, receives and
// the other actions take no time, and their places do not count: messages leave when they can.
// `times` is of every stage, or one for all. Throws Error(usage) for what Inventory refuses, and
// naming ranks and actions where ranks wait for each other for ever.
std::vector<std::vector<TimedPass>> replay(const Schedule& schedule,
                                           const std::vector<StageTimes>& times);

// By rank: the most pairs of a stage and a micro-batch whose activations are alive at a time, from
// the begin of F to the end of B or W.
std::vector<int> peak_activations(const Schedule& schedule);

}  // namespace troika::layout
