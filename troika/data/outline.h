// Filled, anti-aliased outlines, for generated images.
#pragma once

#include <cstdint>
#include <vector>

namespace troika::data {

struct Point {
  double x = 0;
  double y = 0;
};

// Closed contours. A point is inside if a ray from it crosses them an odd number of times, so a
// contour within a contour is a hole.
using Outline = std::vector<std::vector<Point>>;

// A scaling along each axis, then a rotation, then a shift.
struct Placing {
  double angle = 0;  // radians
  double scale_x = 1;
  double scale_y = 1;
  Point centre = {};
};

Outline place(const Outline& outline, const Placing& placing);

// Computes the share of each pixel of a side x side picture that the outline covers, 0 .. 1: exact
// along x, from four lines per pixel along y. `coverage` holds side * side values, all of which are
// written.
void cover(const Outline& outline, int side, float* coverage);

}  // namespace troika::data
