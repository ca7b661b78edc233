#include "troika/observe/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace troika::observe {

namespace {

constexpr int kMinBar = 4;
constexpr int kMaxBar = 40;
constexpr const char* kDone = "\x1b[36m";
constexpr const char* kRest = "\x1b[90m";
constexpr const char* kReset = "\x1b[0m";

double fraction(const ProgressState& state) {
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
}

std::string repeat(const char* cell, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cell;
  return text;
}

// Half cells double the resolution: ━ is a full cell, ╸ its left half. The remaining part is blank
// without colours, and a dim line with colours.
std::string bar(double fraction, int cells, bool color) {
  const int halves = static_cast<int>(fraction * 2 * cells);
  const std::string done = repeat("━", halves / 2) + (halves % 2 ? "╸" : "");
  const int rest = cells - (halves + 1) / 2;
  if (!color) return done + std::string(static_cast<size_t>(rest), ' ');
  return kDone + done + kRest + repeat("━", rest) + kReset;
}

// For example "63% 158/250", padded to its final width, or "158" if the total is unknown.
std::string counts(const ProgressState& state, bool padded) {
  if (state.total <= 0) return std::to_string(state.done);
  const std::string total = std::to_string(state.total);
  // Rounds down, so 100% means complete.
  const int percent = static_cast<int>(100 * fraction(state));
  if (!padded) return fmt::format("{}% {}/{}", percent, state.done, total);
  return fmt::format("{:>3}% {:>{}}/{}", percent, state.done, total.size(), total);
}

std::string number_text(const std::string& name, double value) {
  return std::isnan(value) ? name + " nan" : fmt::format("{} {:#.4g}", name, value);
}

std::vector<std::string> fields(const ProgressState& state) {
  std::vector<std::string> texts;
  if (std::isfinite(state.samples_per_second)) {
    texts.push_back(fmt::format("{:.{}f} samples/s", state.samples_per_second,
                                state.samples_per_second < 10 ? 1 : 0));
  }
  if (state.has_loss) {
    texts.push_back(number_text("loss", state.loss));
  }
  for (const auto& [name, value] : state.metrics) texts.push_back(number_text(name, value));
  if (std::isfinite(state.seconds_left)) {
    texts.push_back("ETA " + clock_text(state.seconds_left));
  }
  if (std::isfinite(state.seconds)) {
    texts.push_back("in " + clock_text(state.seconds));
  }
  return texts;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string live_line(const ProgressState& state, int columns, bool color) {
  const auto width = static_cast<size_t>(std::max(columns - 1, 0));
  std::string tail = counts(state, true);
  for (const std::string& field : fields(state)) {
    const std::string longer = tail + " | " + field;
    if (state.label.size() + 1 + longer.size() > width) break;
    tail = longer;
  }
  const std::string without_bar = state.label + " " + tail;
  if (without_bar.size() > width) return without_bar.substr(0, width);
  const int cells = std::min(static_cast<int>(width - without_bar.size()) - 1, kMaxBar);
  if (state.total <= 0 || cells < kMinBar) return without_bar;
  return state.label + " " + bar(fraction(state), cells, color) + " " + tail;
}

std::string plain_line(const ProgressState& state) {
  std::string line = state.label + " " + counts(state, false);
  for (const std::string& field : fields(state)) line += " | " + field;
  return line;
}

}  // namespace troika::observe
