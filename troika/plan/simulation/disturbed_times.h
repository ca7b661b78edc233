// Times of passes with jitter and slow devices.
#pragma once

#include <vector>

#include "troika/plan/simulation/rank_programs.h"
#include "troika/plan/simulation/simulated_work.h"

namespace troika::plan {

class DisturbedTimes {
 public:
  // `run` must outlive it.
  explicit DisturbedTimes(const SimulatedRun& run);

  // Returns the factor of a rank's times: its device's rate, and whether it is a straggler.
  double factor(int rank) const { return factors_[static_cast<size_t>(rank)]; }
  // Returns the seconds of a pass, or of two that begin together. Depends on its arguments alone.
  double seconds(int rank, int step, size_t item, const ProgramItem& passes) const;

 private:
  double stage_seconds(const layout::Action& pass) const;

  const SimulatedRun& run_;
  std::vector<double> factors_;  // by rank
};

}  // namespace troika::plan
