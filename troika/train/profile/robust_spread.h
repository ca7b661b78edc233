// The median and the deviation of measurements, without outliers.
#pragma once

#include <vector>

namespace troika::train {

struct RobustSpread {
  double median = 0;
  // 1.4826 times the median distance from the median: the standard deviation, if the values without
  // outliers are normal (Rousseeuw and Croux, JASA 88(424), 1993).
  double deviation = 0;
};

// `values` must not be empty.
RobustSpread robust_spread(std::vector<double> values);

}  // namespace troika::train
