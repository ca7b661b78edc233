// Finds the ranks for which the others wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/observe/summary.h"

namespace troika::observe::report {

// A rank is a straggler if its own time per step exceeds the median of all ranks by this fraction.
inline constexpr double kStragglerShare = 0.10;

// A rank that is slower than the others. Ranks that average gradients wait for the slowest rank, so
// the duration of a whole step does not show which rank is slow. A rank's own time does: the sum of
// all phases except exposed_communication, in which the rank waits.
struct Straggler {
  int rank = 0;
  double own_milliseconds = 0;
  double excess = 0;  // over the median, as a fraction of it
  std::string phase;  // the phase with the greatest excess over the median of all ranks
  double phase_excess_milliseconds = 0;
};

// Returns each rank's own time in milliseconds, from RunSummary::phase_milliseconds.
std::vector<double> own_times(const std::vector<PhaseTime>& phases);

// Whether the medians of this number of steps and seconds are meaningful for a rank. Medians of
// fewer steps, or of a short time, mainly show other load of the machine.
bool tells_of_stragglers(int64_t steps, double seconds);
inline constexpr int64_t kStragglerSteps = 20;
inline constexpr double kStragglerSeconds = 5;

// Returns stragglers, slowest first.
std::vector<Straggler> find_stragglers(const std::vector<PhaseTime>& phases);

}  // namespace troika::observe::report
