#include "troika/train/report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "troika/train/step_times.h"

namespace troika::train::report {

namespace {

// Sizes of the drawings, in CSS pixels at full size.
constexpr double kWidth = 720;
constexpr double kLeft = 64;
constexpr double kRight = 16;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // A line of equal values lies in the middle.
  Range with_room() const {
    if (low < high) return *this;
    const double room = low == 0 ? 1 : std::abs(low) / 2;
    return {low - room, high + room};
  }
};

// Round numbers in the range, about `count` (Heckbert, "Nice Numbers for Graph Labels", Graphics
// Gems 1990).
std::vector<double> ticks(Range range, double count) {
  const double raw = (range.high - range.low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double part = raw / power;
  const double step = power * (part < 1.5 ? 1 : part < 3 ? 2 : part < 7 ? 5 : 10);
  std::vector<double> result;
  const double first = std::ceil(range.low / step);
  for (double i = first; i * step <= range.high + step * 1e-9; ++i) result.push_back(i * step);
  return result;
}

// Draws from `range` of values to pixels.
struct Axis {
  Range range;
  double from;
  double to;

  double operator()(double value) const {
    return from + (value - range.low) / (range.high - range.low) * (to - from);
  }
};

std::string opened(const std::string& title, double height) {
  return fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", kWidth,
                     height, escape(title));
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escape(text));
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1,
      x2, y2);
}

std::string box(double x, double y, double width, double height, size_t colour,
                const std::string& tip) {
  return fmt::format(
      "<rect class=\"c{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">"
      "<title>{}</title></rect>\n",
      colour % kColours.size(), x, y, width, height, escape(tip));
}

std::string legend(const std::vector<std::string>& names) {
  std::string html = "<p class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i) {
    html +=
        fmt::format("<span class=\"key k{}\"></span>{} ", i % kColours.size(), escape(names[i]));
  }
  return html + "</p>\n";
}

std::string path_of(const Series& series, const Axis& x, const Axis& y) {
  std::string path;
  bool pen_down = false;
  for (const Point& point : series.points) {
    const bool finite = std::isfinite(point.y);
    if (finite)
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x(point.x), y(point.y));
    pen_down = finite;
  }
  return path;
}

std::string time_axis(const Axis& x, double top, double bottom, const std::string& unit) {
  std::string svg;
  for (const double tick : ticks(x.range, 8)) {
    svg += grid_line(x(tick), top, x(tick), bottom);
    svg += text_at(x(tick), bottom + 16, "middle", fmt::format("{:g}", tick));
  }
  return svg + text_at(x.to, bottom + 32, "end", unit);
}

// Where a span of the trainer is drawn: its phase, or nothing for what lies around or in phases.
std::optional<size_t> phase_of(const Span& span) {
  for (size_t p = 0; p < kSpanNames.size(); ++p) {
    if (span.name == kSpanNames[p]) return p;
  }
  return std::nullopt;
}

}  // namespace

std::string escape(const std::string& text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string line_plot(const std::string& title, const std::string& unit,
                      const std::vector<Series>& series) {
  constexpr double kHeight = 260, kTop = 12, kBottom = kHeight - 40;
  Range steps, values;
  std::vector<std::string> names;
  for (const Series& one : series) {
    names.push_back(one.name);
    for (const Point& point : one.points) {
      if (!std::isfinite(point.y)) continue;
      steps.include(point.x);
      values.include(point.y);
    }
  }
  if (values.empty()) return "<p>No finite value was logged.</p>\n";
  const Axis x{steps.with_room(), kLeft, kWidth - kRight};
  const Axis y{values.with_room(), kBottom, kTop};
  std::string svg = opened(title, kHeight) + time_axis(x, kTop, kBottom, "optimizer step");
  for (const double tick : ticks(y.range, 5)) {
    svg += grid_line(x.from, y(tick), x.to, y(tick));
    svg += text_at(x.from - 6, y(tick) + 4, "end", fmt::format("{:g}", tick));
  }
  for (size_t i = 0; i < series.size(); ++i) {
    svg += fmt::format("<path class=\"line l{}\" d=\"{}\"/>\n", i % kColours.size(),
                       path_of(series[i], x, y));
    if (series[i].points.size() > 60) continue;
    for (const Point& point : series[i].points) {
      if (!std::isfinite(point.y)) continue;
      svg += fmt::format(
          "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}: {:g} at step {:g}"
          "</title></circle>\n",
          i % kColours.size(), x(point.x), y(point.y), escape(names[i]), point.y, point.x);
    }
  }
  svg += text_at(4, kHeight - 8, "start", unit) + "</svg>\n";
  return svg + legend(names);
}

std::string bar_plot(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values) {
  constexpr double kBar = 22;
  double longest = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    double sum = 0;
    for (const auto& part : values) sum += part[r];
    longest = std::max(longest, sum);
  }
  if (!(longest > 0)) return "<p>Nothing was measured.</p>\n";
  const double bottom = 8 + kBar * static_cast<double>(rows.size());
  const Axis x{{0, longest}, kLeft, kWidth - kRight};
  std::string svg = opened(title, bottom + 40) + time_axis(x, 4, bottom, unit);
  for (size_t r = 0; r < rows.size(); ++r) {
    const double top = 6 + kBar * static_cast<double>(r);
    svg += text_at(kLeft - 6, top + kBar / 2 + 4, "end", rows[r]);
    double before = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const double value = values[p][r];
      svg += box(x(before), top, x(value) - x(0), kBar - 4, p,
                 fmt::format("{}, {}: {:.3g} {}", rows[r], parts[p], value, unit));
      before += value;
    }
  }
  return svg + "</svg>\n" + legend(parts);
}

std::string step_plot(const TraceRecord& trace, int64_t step, size_t ranks) {
  constexpr double kLane = 14, kRank = 44;
  Range time;
  for (size_t r = 0; r < ranks; ++r) {
    for (const Span& span : trace.ranks[r].spans) {
      if (span.step != step || span.name != "step") continue;
      time.include(span.start);
      time.include(span.end);
    }
  }
  if (time.empty()) return "<p>The trace holds no whole step.</p>\n";
  const double start = time.low;
  const Axis x{{0, (time.high - start) / 1e3}, kLeft, kWidth - kRight};
  const double bottom = 8 + kRank * static_cast<double>(ranks);
  std::string svg = opened(fmt::format("what each rank did in step {}", step), bottom + 40) +
                    time_axis(x, 4, bottom, "ms");
  for (size_t r = 0; r < ranks; ++r) {
    const double top = 8 + kRank * static_cast<double>(r);
    svg += text_at(kLeft - 6, top + kLane - 2, "end", fmt::format("rank {}", r));
    svg += text_at(kLeft - 6, top + 2 * kLane, "end", "buckets");
    for (const Span& span : trace.ranks[r].spans) {
      const bool bucket = span.name == "bucket";
      const auto phase = phase_of(span);
      if (span.step != step || !(bucket || phase)) continue;
      const double from = (span.start - start) / 1e3, length = (span.end - span.start) / 1e3;
      svg +=
          box(x(from), bucket ? top + kLane + 3 : top, x(length) - x(0), kLane, bucket ? 3 : *phase,
              fmt::format("{}{}: {:.3f} ms from {:.3f} ms", span.name,
                          bucket ? fmt::format(" {}", span.bucket) : "", length, from));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace troika::train::report
