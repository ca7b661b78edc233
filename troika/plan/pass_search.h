// The heuristic of arXiv 2401.10241, section 3, for pipelines of one stage a rank whose backward
// pass is split.
#pragma once

#include <optional>
#include <vector>

#include "troika/layout/schedule.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// A pipeline of which an order is sought.
struct SearchedPipeline {
  int ranks = 1;
  int micro_batches = 1;
  std::vector<layout::StageTimes> times;  // of each rank
  double limit = 1;                       // of memory, in activations of a stage
  MemoryModel memory = {};
};

// What the heuristic leaves open; it is run with every combination.
struct SearchSwitches {
  // Forward passes before the first gradient comes may end after it came.
  bool fills_beyond_gradient = false;
  // A rank leaves a forward pass out for a round where the next rank has enough to do.
  bool may_skip_forward = false;
  // A weight part goes into every wait, even if it ends after the wait.
  bool fills_every_wait = false;
};

// The passes of each rank; nothing where this way finds no order within the limit.
std::optional<layout::Schedule> search_passes(const SearchedPipeline& pipeline,
                                              const SearchSwitches& switches);

}  // namespace troika::plan
