// Times of passes with jitter and slow devices.
#pragma once

#include <vector>

#include "troika/plan/simulation/rank_programs.h"
#include "troika/plan/simulation/simulated_work.h"

namespace troika::plan {

class DisturbedTimes {
 public:
  // `run` must outlive this object.
  explicit DisturbedTimes(const SimulatedRun& run);

  // Returns the factor on a rank's times. It accounts for the rate of the rank's device and for
  // stragglers.
  double factor(int rank) const { return factors_[static_cast<size_t>(rank)]; }
  // Returns the seconds of a pass, or of two passes that begin together. Depends only on the
  // arguments.
  double seconds(int rank, int step, size_t item, const ProgramItem& passes) const;

 private:
  const SimulatedRun& run_;
  std::vector<double> factors_;  // by rank
};

}  // namespace troika::plan
