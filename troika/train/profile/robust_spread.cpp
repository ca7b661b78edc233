#include "troika/train/profile/robust_spread.h"

#include <algorithm>
#include <cmath>

#include "troika/base/error.h"

namespace troika::train {

namespace {

double median_of(std::vector<double>& values) {
  TROIKA_CHECK(!values.empty(), "a median needs values");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

RobustSpread robust_spread(std::vector<double> values) {
  RobustSpread result{.median = median_of(values)};
  for (auto& value : values) value = std::abs(value - result.median);
  constexpr double kNormal = 1.4826;
  result.deviation = kNormal * median_of(values);
  return result;
}

}  // namespace troika::train
