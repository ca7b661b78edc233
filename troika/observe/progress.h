// Shows the progress of a loop on standard error: one line redrawn in place on a terminal, or plain
// lines from time to time in a file.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/observe/progress_text.h"

namespace troika::observe {

// The destination of progress; replaced in tests.
struct ProgressOutput {
  bool live = false;
  bool color = false;
  Clock::duration interval = std::chrono::seconds(10);  // between plain lines
  std::function<int()> columns;                         // asked at each redraw
  std::function<void(std::string_view)> write;
  std::function<Clock::time_point()> now = Clock::now;

  // Standard error. `live` if it is a terminal and TERM is not dumb; TROIKA_TTY=1 or 0 in the
  // environment overrides this, for a process whose launcher forwards its output to a terminal. In
  // colour unless NO_COLOR is set and not empty (no-color.org). The width is the terminal's,
  // otherwise COLUMNS, otherwise 80.
  static ProgressOutput standard_error();
};

// Not thread-safe. Rate and ETA cover the last 10 seconds. The loss is an exponential running mean
// over about the last 20 losses, corrected for its start; NaN stays NaN.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressOutput output = ProgressOutput::standard_error());
  // Leaves the line visible, so after an error it shows how far the loop got.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Starts a loop over `total` batches (0: unknown), of which `done` are already complete, for
  // example after a resume. Draws at once on a terminal.
  void start(std::string label, int64_t total, int64_t done = 0);
  // Counts more completed batches; `samples` counts those of all ranks. Draws at most 10 times a
  // second.
  void advance(int64_t batches, int64_t samples);
  // Shown from the next line on.
  void add_loss(double loss);
  // Shown from the next line on, after the loss. A new value of a name replaces the earlier value.
  void show_metrics(const std::vector<std::pair<std::string, double>>& metrics);
  // Ends the loop with a final line that stays, with the rate and time of the whole loop.
  void finish();
  // Removes the live line from the terminal, so other output can be printed; the next advance()
  // redraws it.
  void clear();

 private:
  struct Mark {
    Clock::time_point at;
    int64_t done;
    int64_t samples;
  };
  void show(Clock::time_point now);
  void draw(const ProgressState& shown) const;
  ProgressState state(const Mark& from, const Mark& to) const;

  ProgressOutput output_;
  std::string label_;
  int64_t total_ = 0;
  Mark first_{};
  Mark latest_{};
  std::deque<Mark> marks_;  // shown in the last seconds, oldest first
  Clock::time_point next_show_{};
  bool on_screen_ = false;
  double loss_sum_ = 0;
  double loss_weight_ = 0;
  std::vector<std::pair<std::string, double>> metrics_;
};

}  // namespace troika::observe
