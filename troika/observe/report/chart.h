// A drawing with axes, as HTML and SVG. Marks are scaled to the page's width but text is not, so a
// chart is readable on a phone and on a wide screen.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace troika::observe::report {

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value);
  bool empty() const { return low > high; }
};

// Maps values of a range to positions along an axis, from 0 to 1.
struct Scale {
  Range range;

  double operator()(double value) const { return (value - range.low) / (range.high - range.low); }
};

// A scale with a margin of 5 % on both sides. It does not extend below 0 if no value does. Equal
// values are in its middle.
Scale scale_with_margin(const Range& values);

struct Tick {
  double at;  // position along the axis, 0 .. 1
  std::string text;
};

// Returns about `count` round numbers in the scale's range, multiples of `unit` if that is positive
// (Heckbert, "Nice Numbers for Graph Labels", Graphics Gems 1990). Texts have the digits needed to
// tell neighbours apart, and a suffix k, M, G or T from 10,000 on.
std::vector<Tick> ticks(const Scale& scale, double count, double unit = 0);

// The side of the square in which marks are drawn; y grows downwards.
inline constexpr double kSide = 1000;

// A name in a legend, with its index in kColours.
struct LegendEntry {
  std::string name;
  size_t colour;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;  // empty if the ticks' texts suffice
  std::vector<Tick> x_ticks;
  std::vector<Tick> y_ticks;
  bool has_y_grid = true;
  double height;      // of the drawing without its labels, in CSS pixels
  std::string marks;  // SVG, kSide by kSide
  std::vector<LegendEntry> legend;
};

// Returns a <figure>.
std::string draw(const Chart& chart);

}  // namespace troika::observe::report
