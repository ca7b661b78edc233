#include "troika/train/profile/robust_spread.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  const double median = median_of(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - median));
  constexpr double kNormal = 1.4826, kDeviations = 5;
  RobustSpread result{.deviation = kNormal * median_of(distances)};
  std::erase_if(values, [&](double value) {
    return std::abs(value - median) > kDeviations * result.deviation;
  });
  // At least the half that is nearest to the median is left.
  result.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return result;
}

}  // namespace troika::train
