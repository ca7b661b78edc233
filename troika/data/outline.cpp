#include "troika/data/outline.h"

#include <algorithm>
#include <cmath>

namespace troika::data {

Outline place(const Outline& outline, const Placing& placing) {
  const double cosine = std::cos(placing.angle);
  const double sine = std::sin(placing.angle);
  Outline placed = outline;
  for (auto& contour : placed) {
    for (auto& point : contour) {
      const double x = point.x * placing.scale_x;
      const double y = point.y * placing.scale_y;
      point = {placing.centre.x + cosine * x - sine * y, placing.centre.y + sine * x + cosine * y};
    }
  }
  return placed;
}

void cover(const Outline& outline, int side, float* coverage) {
  constexpr int kLines = 4;
  std::fill_n(coverage, side * side, 0.0F);
  double top = side;
  double bottom = 0;
  for (const auto& contour : outline) {
    for (const auto& point : contour) {
      top = std::min(top, point.y);
      bottom = std::max(bottom, point.y);
    }
  }
  const int first_row = std::max(0, static_cast<int>(std::floor(top)));
  const int last_row = std::min(side - 1, static_cast<int>(std::floor(bottom)));
  std::vector<double> crossings;
  for (int line = first_row * kLines; line < (last_row + 1) * kLines; ++line) {
    const double y = (line + 0.5) / kLines;
    crossings.clear();
    for (const auto& contour : outline) {
      Point from = contour.back();
      for (const Point to : contour) {
        if ((from.y <= y) != (to.y <= y)) {
          crossings.push_back(from.x + (to.x - from.x) * (y - from.y) / (to.y - from.y));
        }
        from = to;
      }
    }
    std::sort(crossings.begin(), crossings.end());
    float* row = coverage + line / kLines * side;
    for (size_t i = 0; i + 1 < crossings.size(); i += 2) {
      const double begin = std::max(crossings[i], 0.0);
      const double end = std::min(crossings[i + 1], static_cast<double>(side));
      for (int x = static_cast<int>(begin); x < end; ++x) {
        const double part = std::min(end, x + 1.0) - std::max(begin, static_cast<double>(x));
        row[x] += static_cast<float>(part / kLines);
      }
    }
  }
}

}  // namespace troika::data
