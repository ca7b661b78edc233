// The mean and the deviation of measurements, without outliers.
#pragma once

#include <vector>

namespace troika::train {

struct RobustSpread {
  // The mean of the values at most 5 deviations from the median. Times of passes have a long tail:
  // the time of a step, a sum of many, is near the sum of their means and above that of their
  // medians.
  double mean = 0;
  // 1.4826 times the median distance from the median: the standard deviation, if the values without
  // outliers are normal (Rousseeuw and Croux, JASA 88(424), 1993).
  double deviation = 0;
};

// `values` must not be empty.
RobustSpread robust_spread(std::vector<double> values);

}  // namespace troika::train
