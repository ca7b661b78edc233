// The text of a progress line, as pure functions of its state.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace troika::observe {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Numbers that are kUnknown are left out, and so is the loss without has_loss.
struct ProgressState {
  std::string label;  // ASCII: "epoch 2/5"
  int64_t done = 0;   // batches
  int64_t total = 0;  // batches; 0: unknown, so the line has no bar, percentage or ETA
  double samples_per_second = kUnknown;
  bool has_loss = false;
  double loss = kUnknown;                                    // shown even if NaN
  std::vector<std::pair<std::string, double>> metrics = {};  // shown even if NaN
  double seconds = kUnknown;                                 // since the start, shown as "in"
  double seconds_left = kUnknown;                            // shown as "ETA"
};

// Returns one line for a terminal with `columns` cells. It has at most columns - 1 cells and never
// wraps; the remaining space has a bar of at most 40 cells. If the space is too small, the bar is
// dropped first, then fields from the right:
// `epoch 2/5 ━━━━━━━╸      63% 158/250 | 412 samples/s | loss 0.3123 | ETA 0:41`
// `color` adds escape sequences for colours.
std::string live_line(const ProgressState& state, int columns, bool color);

// Returns the same without the bar, for a file.
std::string plain_line(const ProgressState& state);

// 41.2 -> "0:41", 3700 -> "1:01:40".
std::string clock_text(double seconds);

}  // namespace troika::observe
