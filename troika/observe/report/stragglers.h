// Which ranks the others wait for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/observe/summary.h"

namespace troika::observe::report {

// A rank is a straggler when its own time a step is this much above the median of all ranks'.
inline constexpr double kStragglerShare = 0.10;

// Ranks that average gradients all take the time of the slowest, so a whole step does not tell who
// that is. A rank's own time does: all phases but exposed_communication, in which it waits.
struct Straggler {
  int rank = 0;
  double own_milliseconds = 0;
  double excess = 0;  // over the median, as a share of it
  std::string phase;  // the one in which it lies furthest above the median of all ranks
  double phase_excess_milliseconds = 0;
};

// Each rank's own time in milliseconds, from RunSummary::phase_milliseconds.
std::vector<double> own_times(const std::vector<PhaseTime>& phases);

// Whether the medians of so many steps say anything of a rank: those of a few steps, or of a
// moment, are those of what else the machine did.
bool tells_of_stragglers(int64_t steps, double seconds);
inline constexpr int64_t kStragglerSteps = 20;
inline constexpr double kStragglerSeconds = 5;

// The slowest first.
std::vector<Straggler> find_stragglers(const std::vector<PhaseTime>& phases);

}  // namespace troika::observe::report
