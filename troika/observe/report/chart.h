// A drawing with axes, as HTML and SVG: marks are stretched to the width of the page, texts are
// not, so that a chart can be read on a phone as on a wide screen.
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

// Where values of a range lie along an axis: 0 at its start, 1 at its end.
struct Scale {
  Range range;

  double operator()(double value) const { return (value - range.low) / (range.high - range.low); }
};

// A scale with a margin of 5 % on both sides. It does not go below 0 for values that do not, and
// equal values lie in its middle.
Scale scale_with_margin(const Range& values);

struct Tick {
  double at;  // 0 .. 1 along the axis
  std::string text;
};

// About `count` round numbers of the scale's range, each a multiple of `unit` if that is positive
// (Heckbert, "Nice Numbers for Graph Labels", Graphics Gems 1990). Texts have as many digits as
// tell neighbours apart; from 10,000 on they have a suffix k, M, G or T.
std::vector<Tick> ticks(const Scale& scale, double count, double unit = 0);

// Side of the square that marks are drawn in; y grows downwards.
inline constexpr double kSide = 1000;

// A name in a legend, with its place in kColours.
struct LegendEntry {
  std::string name;
  size_t colour;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;  // empty: the ticks' texts say it all
  std::vector<Tick> x_ticks;
  std::vector<Tick> y_ticks;
  bool has_y_grid = true;
  double height;      // of the drawing without its labels, in CSS pixels
  std::string marks;  // SVG, kSide by kSide
  std::vector<LegendEntry> legend;
};

// A <figure>.
std::string draw(const Chart& chart);

}  // namespace troika::observe::report
