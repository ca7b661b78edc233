#include "troika/observe/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "troika/observe/report/html.h"
#include "troika/observe/report/style.h"

namespace troika::observe::report {

namespace {

// Formats ticks that are `step` apart and at most `largest` in absolute value.
class TickText {
 public:
  TickText(double step, double largest) : step_(step) {
    constexpr std::array<std::pair<double, const char*>, 4> kSuffixes{
        {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}}};
    for (const auto& [from, suffix] : kSuffixes) {
      if (largest < from) continue;
      factor_ = from == 1e4 ? 1e3 : from;
      suffix_ = suffix;
      break;
    }
    if (largest < 1e-3) {
      const double exponent = std::floor(std::log10(largest));
      factor_ = std::pow(10, exponent);
      suffix_ = fmt::format("e{:.0f}", exponent);
    }
  }

  std::string of(double value) const {
    if (std::abs(value) < step_ / 2) return "0";
    const int digits =
        std::max(0, static_cast<int>(-std::floor(std::log10(step_ / factor_) + 1e-9)));
    return fmt::format("{:.{}f}{}", value / factor_, digits, suffix_);
  }

 private:
  const double step_;
  double factor_ = 1;
  std::string suffix_;
};

std::string legend(const std::vector<LegendEntry>& entries) {
  if (entries.empty()) return {};
  std::string html = "<p class=\"legend\">";
  for (const auto& [name, colour] : entries) {
    html += fmt::format("<span><span class=\"key k{}\"></span>{}</span> ", colour, escape(name));
  }
  return html + "</p>\n";
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x1, y1, x2, y2);
}

std::string grid(const Chart& chart) {
  std::string svg;
  for (const Tick& tick : chart.x_ticks) {
    svg += grid_line(kSide * tick.at, 0, kSide * tick.at, kSide);
  }
  if (!chart.has_y_grid) return svg;
  for (const Tick& tick : chart.y_ticks) {
    svg += grid_line(0, kSide * (1 - tick.at), kSide, kSide * (1 - tick.at));
  }
  return svg;
}

std::string y_texts(const std::vector<Tick>& ticks) {
  std::string html = "<div class=\"y-ticks\">";
  // Hidden copies make the column as wide as the widest text.
  for (const Tick& tick : ticks) html += "<i>" + escape(tick.text) + "</i>";
  for (const Tick& tick : ticks) {
    html += fmt::format("<span style=\"top:{:.2f}%\">{}</span>", 100 * (1 - tick.at),
                        escape(tick.text));
  }
  return html + "</div>\n";
}

std::string x_texts(const std::vector<Tick>& ticks) {
  std::string html = "<div class=\"x-ticks\">";
  for (const Tick& tick : ticks) {
    html += fmt::format("<span style=\"left:{:.2f}%\">{}</span>", 100 * tick.at, escape(tick.text));
  }
  return html + "</div>\n";
}

}  // namespace

void Range::include(double value) {
  low = std::min(low, value);
  high = std::max(high, value);
}

Scale scale_with_margin(const Range& values) {
  const double extent = values.high - values.low;
  const double largest = std::max(std::abs(values.low), std::abs(values.high));
  // Values that differ only by rounding count as equal.
  const double margin = extent > 1e-9 * largest ? extent / 20 : largest == 0 ? 1 : largest / 2;
  const double low = values.low - margin;
  return {{values.low >= 0 ? std::max(low, 0.0) : low, values.high + margin}};
}

std::vector<Tick> ticks(const Scale& scale, double count, double unit) {
  const auto [low, high] = scale.range;
  const double raw = std::max((high - low) / count, unit);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double part = raw / power;
  const double step = power * (part < 1.5 ? 1 : part < 3 ? 2 : part < 7 ? 5 : 10);
  const TickText text(step, std::max(std::abs(low), std::abs(high)));
  std::vector<Tick> result;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    result.push_back({scale(i * step), text.of(i * step)});
  }
  return result;
}

std::string draw(const Chart& chart) {
  std::string html = "<figure class=\"chart\">\n<figcaption>" + escape(chart.title) +
                     "</figcaption>\n" + legend(chart.legend) + "<div class=\"frame\">\n";
  if (!chart.y_label.empty()) {
    html += "<div class=\"y-label\">" + escape(chart.y_label) + "</div>\n";
  }
  html += y_texts(chart.y_ticks);
  html += fmt::format(
      "<svg viewBox=\"0 0 {0:.0f} {0:.0f}\" preserveAspectRatio=\"none\" "
      "style=\"height:{1:.0f}px\" "
      "role=\"img\" aria-label=\"{2}\">\n{3}{4}</svg>\n",
      kSide, chart.height, escape(chart.title), grid(chart), chart.marks);
  return html + x_texts(chart.x_ticks) + "<div class=\"x-label\">" + escape(chart.x_label) +
         "</div>\n</div>\n</figure>\n";
}

}  // namespace troika::observe::report
