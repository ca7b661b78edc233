// The text of a progress line, as pure functions of the state.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace troika::observe {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// A number that is kUnknown (or, for the loss, was never given) is left out.
struct ProgressState {
  std::string label;  // ASCII: "epoch 2/5"
  int64_t done = 0;   // batches
  int64_t total = 0;  // batches; 0: not known in advance, so neither bar nor percentage nor ETA
  double samples_per_second = kUnknown;
  bool has_loss = false;
  double loss = kUnknown;  // shown even when it is NaN: that is news
  std::vector<std::pair<std::string, double>> metrics = {};  // likewise
  double seconds = kUnknown;                                 // since the start, shown as "in"
  double seconds_left = kUnknown;                            // shown as "ETA"
};

// One line for a terminal of `columns` cells, at most columns - 1 wide so that it never wraps, with
// a bar of at most 40 cells in the space left over; where it is too narrow the bar goes first, then
// fields from the right:
// `epoch 2/5 ━━━━━━━╸      63% 158/250 | 412 samples/s | loss 0.3123 | ETA 0:41`
// `color` adds escape sequences for colours.
std::string live_line(const ProgressState& state, int columns, bool color);

// The same without the bar, for a file.
std::string plain_line(const ProgressState& state);

// 41.2 -> "0:41", 3700 -> "1:01:40".
std::string clock_text(double seconds);

}  // namespace troika::observe
