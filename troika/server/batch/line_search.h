// A line search for the strong Wolfe conditions (Nocedal and Wright, "Numerical Optimization", 2nd
// edition, algorithms 3.5 and 3.6). Where values differ by rounding only, the first condition is
// replaced by one on slopes (Hager and Zhang, "A new conjugate gradient method with guaranteed
// descent and an efficient line search", SIAM J. Optim. 2005, equation 4.1).
#pragma once

#include <functional>

namespace troika::server {

// A point of the line: the step, and the function's value and slope there.
struct LinePoint {
  double step = 0;
  double value = 0;
  double slope = 0;
};

struct LineSearchOptions {
  double decrease = 1e-4;  // c1: value <= first value + c1 * step * first slope
  double curvature = 0.9;  // c2: |slope| <= c2 * |first slope|
  int most_evaluations = 25;
};

struct LineSearchResult {
  // Fulfils the first condition or its replacement, or has step 0 if no such point was found.
  LinePoint point;
  bool is_wolfe = false;  // fulfils both conditions
  int evaluations = 0;
};

// Searches from a point of step 0, whose slope must be below 0. `first_step` is tried first.
// `evaluate` returns the point of a step; values that are not finite count as too large.
LineSearchResult search_line(const std::function<LinePoint(double)>& evaluate,
                             const LinePoint& begin, double first_step,
                             const LineSearchOptions& options);

}  // namespace troika::server
