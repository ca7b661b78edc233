// The stages, ranks and micro-batches of a schedule, checked for completeness.
#pragma once

#include <vector>

#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

struct Inventory {
  // Throws Error(usage), naming rank and action, unless each stage from 0 to the last is on one
  // rank and runs each micro-batch from 0 to the last forward once, and either every stage runs
  // each backward once (B, or I and W) or none does. Does not check messages. Takes time and memory
  // linear in the number of actions.
  explicit Inventory(const Schedule& schedule);

  size_t at(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(micro_batches) +
           static_cast<size_t>(micro_batch);
  }
  int rank(int stage) const { return rank_of[static_cast<size_t>(stage)]; }

  int stages = 0;
  int micro_batches = 0;
  bool trains = false;       // has backward passes
  std::vector<int> rank_of;  // by stage
};

}  // namespace troika::layout
