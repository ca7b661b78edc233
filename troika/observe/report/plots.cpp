#include "troika/observe/report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <string_view>

#include "troika/observe/report/html.h"
#include "troika/observe/report/style.h"
#include "troika/observe/step_times.h"

namespace troika::observe::report {

namespace {

constexpr double kTicks = 5;  // approximate number on an axis; fits into the width of a phone
constexpr size_t kDots = 60;
constexpr size_t kDrawn = 1000;

double x_of(const Scale& scale, double value) {
  return kSide * scale(value);
}
double y_of(const Scale& scale, double value) {
  return kSide * (1 - scale(value));
}

std::string box(double x, double y, double width, double height, size_t colour,
                const std::string& tip) {
  return fmt::format(
      "<rect class=\"c{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">"
      "<title>{}</title></rect>\n",
      colour % kColours.size(), x, y, width, height, escape(tip));
}

// In the order of the parts.
std::vector<LegendEntry> legend_of(const std::vector<std::string>& parts) {
  std::vector<LegendEntry> entries;
  for (const auto& part : parts) entries.push_back({part, entries.size() % kColours.size()});
  return entries;
}

// Colours of training steps, training epochs, validation and test, and of names without a stage.
size_t usual_colour(const std::string& name) {
  if (name.starts_with("validation/")) return 2;
  if (name.starts_with("test/")) return 3;
  const bool of_epochs = name.starts_with("train/epoch_") || name.ends_with("_epoch");
  if (name.starts_with("train/")) return of_epochs ? 1 : 0;
  return of_epochs ? 5 : 4;
}

// All different if there are at most as many series as colours.
std::vector<size_t> colours_of(const std::vector<Series>& series) {
  std::array<bool, kColours.size()> taken{};
  std::vector<size_t> result;
  for (const auto& one : series) {
    size_t colour = usual_colour(one.name);
    while (taken[colour] && result.size() < kColours.size())
      colour = (colour + 1) % kColours.size();
    taken[colour] = true;
    result.push_back(colour);
  }
  return result;
}

// Keeps the first, minimum, maximum and last point of each run of neighbours, so peaks remain, and
// one of each sequence of non-finite points.
std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= kDrawn) return points;
  const size_t neighbours = (4 * points.size() + kDrawn - 1) / kDrawn;
  const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
  std::vector<Point> result;
  for (auto begin = points.begin(); begin != points.end();) {
    if (!std::isfinite(begin->y)) {
      if (result.empty() || std::isfinite(result.back().y)) result.push_back(*begin);
      ++begin;
      continue;
    }
    const auto most = std::min<int64_t>(static_cast<int64_t>(neighbours), points.end() - begin);
    const auto end = std::find_if(begin, begin + most,
                                  [](const Point& point) { return !std::isfinite(point.y); });
    std::array chosen{begin, std::min_element(begin, end, lower),
                      std::max_element(begin, end, lower), end - 1};
    std::ranges::sort(chosen);
    const auto last = std::unique(chosen.begin(), chosen.end());
    for (auto one = chosen.begin(); one != last; ++one) result.push_back(**one);
    begin = end;
  }
  return result;
}

std::string line_of(const std::vector<Point>& points, const Scale& x, const Scale& y) {
  std::string path;
  bool pen_down = false;
  for (const Point& point : thinned(points)) {
    const bool finite = std::isfinite(point.y);
    if (finite) {
      path +=
          fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x_of(x, point.x), y_of(y, point.y));
    }
    pen_down = finite;
  }
  return path;
}

// The phase of a trainer's span; empty for spans around or within phases.
std::optional<size_t> phase_of(const SpanRecord& span) {
  for (size_t p = 0; p < kSpanNames.size(); ++p) {
    if (span.name == kSpanNames[p]) return p;
  }
  return std::nullopt;
}

std::vector<std::string> phase_names() {
  std::vector<std::string> names;
  for (const auto name : kPhaseNames) names.push_back(spaced(name));
  return names;
}

// The names of the rows, each at the middle of its row's part of the height.
std::vector<Tick> row_ticks(const std::vector<std::string>& rows) {
  std::vector<Tick> result;
  for (size_t r = 0; r < rows.size(); ++r) {
    result.push_back(
        {1 - (static_cast<double>(r) + 0.5) / static_cast<double>(rows.size()), rows[r]});
  }
  return result;
}

}  // namespace

std::string line_plot(const std::string& title, const std::string& unit, const Range& range,
                      const std::vector<Series>& series, const PlotAxis& axis) {
  Range values;
  const auto colours = colours_of(series);
  std::vector<LegendEntry> names;
  for (const Series& one : series) {
    names.push_back({one.name, colours[names.size()]});
    for (const Point& point : one.points) {
      if (std::isfinite(point.y)) values.include(point.y);
    }
  }
  if (values.empty()) return "<p>" + escape(title) + ": no finite value was logged.</p>\n";
  const Scale x = scale_with_margin(range), y = scale_with_margin(values);
  std::string marks;
  for (size_t i = 0; i < series.size(); ++i) {
    const size_t colour = colours[i];
    const bool has_dots = series[i].points.size() <= kDots;
    marks +=
        fmt::format("<path class=\"line l{}{}\" d=\"{}\"/>\n", colour,
                    has_dots || series.size() == 1 ? "" : " pale", line_of(series[i].points, x, y));
    if (!has_dots) continue;
    for (const Point& point : series[i].points) {
      if (!std::isfinite(point.y)) continue;
      marks += fmt::format(
          "<path class=\"dot l{}\" d=\"M{:.1f} {:.1f}h0\"><title>{}: {:g} {}{:g}</title>"
          "</path>\n",
          colour, x_of(x, point.x), y_of(y, point.y), escape(names[i].name), point.y, axis.before,
          point.x);
    }
  }
  return draw(
      {.title = title,
       .x_label = axis.label,
       .y_label = unit,
       .x_ticks = ticks(x, kTicks, axis.tick_unit),
       .y_ticks = ticks(y, kTicks),
       .height = 210,
       .marks = marks,
       .legend = names.size() == 1 && names[0].name == title ? std::vector<LegendEntry>() : names});
}

std::string bar_plot(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values) {
  constexpr double kBar = 28, kGap = 0.14;  // CSS pixels, and the gap as a fraction of a row
  double longest = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    double sum = 0;
    for (const auto& part : values) sum += part[r];
    longest = std::max(longest, sum);
  }
  if (!(longest > 0)) return "<p>" + escape(title) + ": nothing was measured.</p>\n";
  const Scale x{{0, longest}};
  const double row = kSide / static_cast<double>(rows.size());
  std::string marks;
  for (size_t r = 0; r < rows.size(); ++r) {
    double before = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const double value = values[p][r];
      if (!(value > 0)) continue;
      marks += box(x_of(x, before), row * (static_cast<double>(r) + kGap), x_of(x, value),
                   row * (1 - 2 * kGap), p,
                   fmt::format("{}, {}: {:.3g} {}", rows[r], parts[p], value, unit));
      before += value;
    }
  }
  return draw({.title = title,
               .x_label = unit,
               .y_label = {},
               .x_ticks = ticks(x, kTicks),
               .y_ticks = row_ticks(rows),
               .has_y_grid = false,
               .height = kBar * static_cast<double>(rows.size()),
               .marks = marks,
               .legend = legend_of(parts)});
}

std::string step_plot(const TraceRecord& trace, int64_t step, size_t ranks) {
  constexpr double kLane = 22, kGap = 0.12;
  Range time;
  for (size_t r = 0; r < ranks; ++r) {
    for (const SpanRecord& span : trace.ranks[r].spans) {
      if (span.step != step || span.name != "step") continue;
      time.include(span.start);
      time.include(span.end);
    }
  }
  if (time.empty()) return "<p>The trace holds no whole step.</p>\n";
  const Scale x{{0, (time.high - time.low) / 1e3}};
  const double lane = kSide / static_cast<double>(2 * ranks);
  std::vector<std::string> lanes;
  std::string marks;
  for (size_t r = 0; r < ranks; ++r) {
    lanes.push_back(fmt::format("rank {}", r));
    lanes.push_back("buckets");
    for (const SpanRecord& span : trace.ranks[r].spans) {
      const bool bucket = span.name == "bucket";
      const auto phase = phase_of(span);
      if (span.step != step || !(bucket || phase)) continue;
      const double from = (span.start - time.low) / 1e3, length = (span.end - span.start) / 1e3;
      marks += box(x_of(x, from), lane * (static_cast<double>(2 * r) + (bucket ? 1 : 0) + kGap),
                   x_of(x, length), lane * (1 - 2 * kGap), bucket ? 3 : *phase,
                   fmt::format("{}{}: {:.3f} ms from {:.3f} ms", span.name,
                               bucket ? fmt::format(" {}", span.bucket) : "", length, from));
    }
  }
  return draw({.title = fmt::format("What each rank did in step {}", step),
               .x_label = "ms since the first rank began the step",
               .y_label = {},
               .x_ticks = ticks(x, kTicks),
               .y_ticks = row_ticks(lanes),
               .has_y_grid = false,
               .height = kLane * static_cast<double>(lanes.size()),
               .marks = marks,
               .legend = legend_of(phase_names())});
}

std::string pass_plot(const TraceRecord& trace, int64_t step, size_t ranks) {
  constexpr double kLane = 22, kGap = 0.12;
  const std::vector<std::string> kinds{"forward", "backward", "backward, input part",
                                       "backward, weight part", "other"};
  // Names are those of the text form of schedules: stage, kind, micro-batch.
  const auto kind_of = [](const std::string& name) -> size_t {
    const auto letter = name.find_first_not_of("0123456789");
    const auto kind =
        std::string_view("FBIW").find(letter == std::string::npos ? '?' : name[letter]);
    const bool is_pass = letter + 1 < name.size() && std::isdigit(name[letter + 1]) != 0;
    return is_pass && kind != std::string_view::npos ? kind : 4;
  };
  Range time;
  std::vector<std::vector<SpanRecord>> passes;
  std::vector<std::string> lanes;
  for (size_t r = 0; r < ranks; ++r) {
    lanes.push_back(fmt::format("rank {}", r));
    auto& own = passes.emplace_back();
    for (const SpanRecord& span : trace.ranks[r].spans) {
      if (span.step != step || span.track != "passes") continue;
      own.push_back(span);
      time.include(span.start);
      time.include(span.end);
    }
  }
  if (time.empty()) return "<p>The trace holds no passes.</p>\n";
  const Scale x{{0, (time.high - time.low) / 1e3}};
  const double lane = kSide / static_cast<double>(ranks);
  std::string marks;
  for (size_t r = 0; r < ranks; ++r) {
    for (const auto& span : passes[r]) {
      const double from = (span.start - time.low) / 1e3, length = (span.end - span.start) / 1e3;
      marks += box(x_of(x, from), lane * (static_cast<double>(r) + kGap), x_of(x, length),
                   lane * (1 - 2 * kGap), kind_of(span.name),
                   fmt::format("{}: {:.3f} ms from {:.3f} ms", span.name, length, from));
    }
  }
  return draw({.title = fmt::format("The passes of each rank in step {}", step),
               .x_label = "ms since the first pass",
               .y_label = {},
               .x_ticks = ticks(x, kTicks),
               .y_ticks = row_ticks(lanes),
               .has_y_grid = false,
               .height = kLane * static_cast<double>(lanes.size()),
               .marks = marks,
               .legend = legend_of(kinds)});
}

}  // namespace troika::observe::report
