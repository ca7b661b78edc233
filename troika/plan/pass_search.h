// The heuristic of arXiv 2401.10241, section 3, for pipelines with one stage per rank and a split
// backward pass.
#pragma once

#include <optional>
#include <vector>

#include "troika/layout/schedules/schedule.h"
#include "troika/plan/simulator.h"

namespace troika::plan {

// A pipeline for which an order is searched.
struct SearchedPipeline {
  int ranks = 1;
  int micro_batches = 1;
  std::vector<layout::StageTimes> times;  // by rank
  double limit = 1;                       // memory, in activations of a stage
  MemoryModel memory = {};
};

// Choices that the heuristic leaves open; it is run with every combination.
struct SearchSwitches {
  // Forward passes that start before the first gradient arrives may end after it has arrived.
  bool fills_beyond_gradient = false;
  // A rank skips a forward pass in a round if the next rank has enough to do.
  bool may_skip_forward = false;
  // Every wait gets a weight part, even one that ends after the wait.
  bool fills_every_wait = false;
};

// Returns the passes of each rank; nothing if no order with these switches is within the limit.
std::optional<layout::Schedule> search_passes(const SearchedPipeline& pipeline,
                                              const SearchSwitches& switches);

}  // namespace troika::plan
