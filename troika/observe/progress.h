// The progress of a loop on standard error: one line redrawn in place on a terminal, a plain line
// now and then in a file.
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

// Where progress is shown; replaced in tests.
struct ProgressOutput {
  bool live = false;
  bool color = false;
  Clock::duration interval = std::chrono::seconds(10);  // between plain lines
  std::function<int()> columns;                         // asked at each redraw
  std::function<void(std::string_view)> write;
  std::function<Clock::time_point()> now = Clock::now;

  // Standard error. Live when it is a terminal other than TERM=dumb; TROIKA_TTY=1 or 0 in the
  // environment decides instead, for a process whose launcher passes its output on to a terminal.
  // Colours unless NO_COLOR is set and not empty (no-color.org). The width is the terminal's, else
  // COLUMNS, else 80.
  static ProgressOutput standard_error();
};

// Not for use by several threads. Rate and ETA are over the last 10 seconds; the loss is a running
// mean over about the last 20 given (exponential, corrected for its start), and a NaN stays.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressOutput output = ProgressOutput::standard_error());
  // Leaves the line as it is, on a line of its own: after an error it shows where that was.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Begins a pass over `total` batches (0: unknown) of which `done` are over, as after a resume;
  // drawn at once on a terminal.
  void start(std::string label, int64_t total, int64_t done = 0);
  // Some more batches are over; `samples` counts those of all ranks. Draws at most 10 times a
  // second.
  void advance(int64_t batches, int64_t samples);
  // Shown from the next line on.
  void add_loss(double loss);
  // Shown from the next line on, after the loss; a name replaces its earlier value.
  void show_metrics(const std::vector<std::pair<std::string, double>>& metrics);
  // Ends the pass with a line that stays, with the rate and the time of the whole pass.
  void finish();
  // Takes the live line off the terminal, so that something else can be printed; the next advance()
  // brings it back.
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
  std::deque<Mark> marks_;  // what was shown in the last seconds, oldest first
  Clock::time_point next_show_{};
  bool on_screen_ = false;
  double loss_sum_ = 0;
  double loss_weight_ = 0;
  std::vector<std::pair<std::string, double>> metrics_;
};

}  // namespace troika::observe
