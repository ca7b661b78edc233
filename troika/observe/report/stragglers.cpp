#include "troika/observe/report/stragglers.h"

#include <algorithm>
#include <cmath>

namespace troika::observe::report {

namespace {

bool is_own(const PhaseTime& phase) {
  return phase.phase != "exposed_communication" && phase.phase != "step";
}

double median_of(const std::vector<double>& values) {
  Median median;
  for (const double value : values) {
    if (!std::isnan(value)) median.add(value);
  }
  return median.value();
}

}  // namespace

std::vector<double> own_times(const std::vector<PhaseTime>& phases) {
  std::vector<double> own;
  for (const auto& phase : phases) {
    if (!is_own(phase)) continue;
    own.resize(phase.milliseconds.size());
    for (size_t r = 0; r < own.size(); ++r) own[r] += phase.milliseconds[r];
  }
  return own;
}

bool tells_of_stragglers(int64_t steps, double seconds) {
  return steps >= kStragglerSteps && seconds >= kStragglerSeconds;
}

std::vector<Straggler> find_stragglers(const std::vector<PhaseTime>& phases) {
  const auto own = own_times(phases);
  const double usual = median_of(own);
  std::vector<Straggler> found;
  for (size_t r = 0; r < own.size(); ++r) {
    const double excess = own[r] / usual - 1;
    if (!(excess > kStragglerShare)) continue;
    Straggler straggler{
        .rank = static_cast<int>(r), .own_milliseconds = own[r], .excess = excess, .phase = {}};
    for (const auto& phase : phases) {
      if (!is_own(phase)) continue;
      const double above = phase.milliseconds[r] - median_of(phase.milliseconds);
      if (above <= straggler.phase_excess_milliseconds) continue;
      straggler.phase = phase.phase;
      straggler.phase_excess_milliseconds = above;
    }
    found.push_back(straggler);
  }
  std::ranges::sort(found, std::greater(), &Straggler::excess);
  return found;
}

}  // namespace troika::observe::report
