#include "troika/server/batch/line_search.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace troika::server {

namespace {

bool is_finite(const LinePoint& point) {
  return std::isfinite(point.value) && std::isfinite(point.slope);
}

// Returns the minimum of the cubic through two points with their slopes (equation 3.59), if it
// exists.
std::optional<double> cubic_minimum(const LinePoint& a, const LinePoint& b) {
  if (!is_finite(a) || !is_finite(b)) return std::nullopt;
  const double d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.step - b.step);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return std::nullopt;
  const double d2 = std::copysign(std::sqrt(square), b.step - a.step);
  const double step =
      b.step - (b.step - a.step) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2));
  return std::isfinite(step) ? std::optional(step) : std::nullopt;
}

class Search {
 public:
  Search(const std::function<LinePoint(double)>& evaluate, const LinePoint& begin,
         const LineSearchOptions& options)
      : evaluate_(evaluate),
        begin_(begin),
        options_(options),
        rounding_(1e-14 * std::abs(begin.value)) {}

  // Algorithm 3.5.
  LineSearchResult bracket(double step) {
    LinePoint before = begin_;
    while (const auto point = next(step)) {
      if (is_too_high(*point) || (before.step > 0 && is_above(*point, before))) {
        return zoom(before, *point);
      }
      if (is_flat(*point)) return {*point, true, evaluations_};
      if (point->slope >= 0) return zoom(*point, before);
      // The minimum of the cubic, at most ten times as far.
      const double least = point->step + 0.1 * (point->step - before.step);
      step = std::clamp(cubic_minimum(before, *point).value_or(2 * point->step), least,
                        10 * point->step);
      before = *point;
    }
    return {before, false, evaluations_};
  }

 private:
  std::optional<LinePoint> next(double step) {
    if (evaluations_ >= options_.most_evaluations) return std::nullopt;
    ++evaluations_;
    return evaluate_(step);
  }
  bool is_too_high(const LinePoint& point) const {
    if (!is_finite(point)) return true;
    if (point.value <= begin_.value + options_.decrease * point.step * begin_.slope) return false;
    // Near a minimum values differ by rounding only, but slopes are still exact (equation 4.1).
    return std::abs(point.value - begin_.value) > rounding_ ||
           point.slope > (2 * options_.decrease - 1) * begin_.slope;
  }
  bool is_above(const LinePoint& point, const LinePoint& other) const {
    return point.value >= other.value + rounding_;
  }
  bool is_flat(const LinePoint& point) const {
    return std::abs(point.slope) <= -options_.curvature * begin_.slope;
  }

  // Algorithm 3.6. `low` has the smallest value so far that is low enough.
  LineSearchResult zoom(LinePoint low, LinePoint high) {
    while (true) {
      const double width = high.step - low.step;
      // Steps this close have the same values up to rounding.
      if (std::abs(width) <= 1e-15 * std::max(low.step, high.step)) break;
      // Steps too near an end would not make the interval much smaller.
      const double middle = low.step + width / 2;
      const double step = cubic_minimum(low, high).value_or(middle);
      const double least = std::min(low.step + 0.1 * width, high.step - 0.1 * width);
      const double most = std::max(low.step + 0.1 * width, high.step - 0.1 * width);
      const auto point = next(std::clamp(step, least, most));
      if (!point) break;
      if (is_too_high(*point) || is_above(*point, low)) {
        high = *point;
        continue;
      }
      if (is_flat(*point)) return {*point, true, evaluations_};
      if (point->slope * width >= 0) high = low;
      low = *point;
    }
    return {low, false, evaluations_};
  }

  const std::function<LinePoint(double)>& evaluate_;
  const LinePoint begin_;
  const LineSearchOptions& options_;
  const double rounding_;  // of values
  int evaluations_ = 0;
};

}  // namespace

LineSearchResult search_line(const std::function<LinePoint(double)>& evaluate,
                             const LinePoint& begin, double first_step,
                             const LineSearchOptions& options) {
  return Search(evaluate, begin, options).bracket(first_step);
}

}  // namespace troika::server
