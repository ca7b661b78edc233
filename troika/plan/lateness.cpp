#include "troika/plan/lateness.h"

#include <cmath>

namespace troika::plan {

// The integral of 1 - P(x)^count over x > 0, less that of P(x)^count over x < 0, where P is the
// distribution of one number.
double expected_maximum(int count) {
  constexpr double kMost = 8, kStep = 1.0 / 64;
  const auto below = [&](double x) {
    return std::pow(std::erfc(-x / std::sqrt(2.0)) / 2, static_cast<double>(count));
  };
  double sum = 0;
  for (double x = kStep / 2; x < kMost; x += kStep) sum += (1 - below(x) - below(-x)) * kStep;
  return sum;
}

}  // namespace troika::plan
