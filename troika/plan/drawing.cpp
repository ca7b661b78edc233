#include "troika/plan/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "troika/plan/errors/refuse.h"

namespace troika::plan {

using layout::ActionKind;
using layout::TimedPass;

namespace {

// One pass of a rank, or two that start together.
struct Interval {
  double begin = 0;
  double end = 0;
  std::vector<TimedPass> passes;
};

std::vector<Interval> intervals_of(const std::vector<TimedPass>& passes) {
  std::vector<Interval> intervals;
  bool goes_on = false;
  for (const auto& pass : passes) {
    if (!goes_on) intervals.push_back({pass.begin, pass.end, {}});
    intervals.back().passes.push_back(pass);
    goes_on = pass.action.joined;
  }
  return intervals;
}

// Returns the stages of a rank, ascending; their indices are chunks.
std::vector<int> stages_of(const std::vector<TimedPass>& passes) {
  std::set<int> stages;
  for (const auto& pass : passes) stages.insert(pass.action.stage);
  return {stages.begin(), stages.end()};
}

bool is_odd_chunk(const std::vector<int>& stages, int stage) {
  return (std::ranges::lower_bound(stages, stage) - stages.begin()) % 2 == 1;
}

char letter(const TimedPass& pass, const std::vector<int>& stages) {
  constexpr std::array letters{'F', 'B', 'I', 'W'};
  const char upper = letters[static_cast<size_t>(pass.action.kind)];
  constexpr char kToLower = 'a' - 'A';
  return is_odd_chunk(stages, pass.action.stage) ? static_cast<char>(upper + kToLower) : upper;
}

std::string label(const Interval& interval, const std::vector<int>& stages, bool has_numbers) {
  std::string text;
  for (const auto& pass : interval.passes) {
    if (!text.empty() && has_numbers) text += '+';
    text += letter(pass, stages);
    if (has_numbers) text += std::to_string(pass.action.micro_batch);
  }
  return text;
}

double end_of(const Simulation& simulation) {
  double end = 0;
  for (const auto& passes : simulation.ranks) {
    if (!passes.empty()) end = std::max(end, passes.back().end);
  }
  return end;
}

std::string title_of_rank(size_t rank, size_t ranks) {
  const auto digits = std::to_string(ranks - 1).size();
  return fmt::format("{:>{}} |", rank, digits);
}

// Returns the columns per unit of time with which every interval has room for its label and a
// blank; 0 if all intervals are empty.
double columns_for_labels(const Simulation& simulation) {
  double columns = 0;
  for (const auto& passes : simulation.ranks) {
    const auto stages = stages_of(passes);
    for (const auto& interval : intervals_of(passes)) {
      const double length = interval.end - interval.begin;
      const auto room = static_cast<double>(label(interval, stages, true).size() + 1);
      if (length > 0) columns = std::max(columns, room / length);
    }
  }
  return columns;
}

std::string row_text(const std::vector<TimedPass>& passes, double columns, size_t width,
                     bool has_numbers) {
  std::string row(width, ' ');
  const auto stages = stages_of(passes);
  for (const auto& interval : intervals_of(passes)) {
    const auto begin = static_cast<size_t>(std::lround(interval.begin * columns));
    const auto end = std::min(static_cast<size_t>(std::lround(interval.end * columns)), width);
    if (begin >= end) continue;
    const auto text = label(interval, stages, has_numbers);
    for (size_t i = begin; i < end; ++i) {
      if (has_numbers) {
        // Rounding may remove the blank; then a pass begins at the next letter.
        row[i] = i - begin < text.size() ? text[i - begin] : i + 1 == end ? ' ' : '-';
      } else {
        row[i] = text[(i - begin) % text.size()];
      }
    }
  }
  return row;
}

struct Color {
  const char* light;  // even chunks
  const char* dark;
};

Color color_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return {"#8fb8f0", "#2f6fc4"};
    case ActionKind::backward_weight:
      return {"#f6c27a", "#d98324"};
    default:
      return {"#9fd8a4", "#3f9c4a"};
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string draw_text(const Simulation& simulation, int width) {
  constexpr int kLeast = 20;
  if (width < kLeast) {
    refuse("columns of a drawing", std::to_string(width), fmt::format("at least {}", kLeast));
  }
  const double end = end_of(simulation);
  const size_t ranks = simulation.ranks.size();
  const auto room =
      static_cast<double>(width) - static_cast<double>(title_of_rank(0, ranks).size());
  double columns =
      std::ceil(columns_for_labels(simulation) * end) <= room ? columns_for_labels(simulation) : 0;
  const bool has_numbers = columns > 0;
  if (!has_numbers && end > 0) columns = room / end;
  std::string text;
  for (size_t r = 0; r < ranks; ++r) {
    auto row = row_text(simulation.ranks[r], columns,
                        static_cast<size_t>(std::lround(end * columns)), has_numbers);
    row.erase(row.find_last_not_of(' ') + 1);
    text += title_of_rank(r, ranks) + row + '\n';
  }
  return text;
}

std::string draw_svg(const Simulation& simulation, const std::string& title) {
  constexpr double kRow = 24, kGap = 4, kLeft = 40, kTop = 34, kNumber = 7, kMostWidth = 6000;
  const double end = end_of(simulation);
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& passes : simulation.ranks) {
    for (const auto& pass : passes) {
      if (pass.end > pass.begin) shortest = std::min(shortest, pass.end - pass.begin);
    }
  }
  // The shortest pass has room for a two-digit number, unless the picture became too large for
  // viewers.
  const double scale = end > 0 ? std::min(20 / shortest, kMostWidth / end) : 1;
  const auto rows = static_cast<double>(simulation.ranks.size());
  const double width = kLeft + end * scale + 10, height = kTop + rows * (kRow + kGap) + 10;
  auto svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2:.0f}\" y=\"20\" font-size=\"13\">{3}</text>\n",
      width, height, kLeft, escaped(title));
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const auto& passes = simulation.ranks[r];
    const auto stages = stages_of(passes);
    const double top = kTop + static_cast<double>(r) * (kRow + kGap);
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
                       top + kRow / 2 + 4, r);
    for (const auto& interval : intervals_of(passes)) {
      const double each = kRow / static_cast<double>(interval.passes.size());
      for (size_t i = 0; i < interval.passes.size(); ++i) {
        const auto& action = interval.passes[i].action;
        const bool is_odd = is_odd_chunk(stages, action.stage);
        const auto color = color_of(action.kind);
        const double left = kLeft + interval.begin * scale;
        const double length = (interval.end - interval.begin) * scale;
        const double y = top + static_cast<double>(i) * each;
        svg += fmt::format(
            "<g><title>{}, {:.6g} to {:.6g}</title><rect x=\"{:.2f}\" "
            "y=\"{:.1f}\" "
            "width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"white\" "
            "stroke-width=\"0.7\"/>",
            escaped(describe(action)), interval.begin, interval.end, left, y, length, each,
            is_odd ? color.dark : color.light);
        const auto number = std::to_string(action.micro_batch);
        if (length >= kNumber * static_cast<double>(number.size()) + 2) {
          svg += fmt::format(
              "<text x=\"{:.2f}\" y=\"{:.1f}\" "
              "text-anchor=\"middle\" fill=\"{}\">{}</text>",
              left + length / 2, y + each / 2 + 4, is_odd ? "white" : "black", number);
        }
        svg += "</g>\n";
      }
    }
  }
  return svg + "</svg>\n";
}

}  // namespace troika::plan
