// The plots of the page. Colours come from the style sheet: classes c0, c1, ... of kColours.
#pragma once

#include <string>
#include <vector>

#include "troika/observe/report/chart.h"
#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// The x axis of a line plot.
struct PlotAxis {
  std::string label = "optimizer step";
  std::string before = "at step ";  // a point's number, in its tip
  double tick_unit = 1;             // see ticks()
};

// A line plot over `range` of the x axis. Non-finite points interrupt a line. Series of
// up to 60 points have dots; in series of more than 1000 points, minima and maxima represent their
// neighbours. A line without dots is paler if the chart has other lines. A series has its stage's
// colour in all charts of all runs, unless another series of the chart has taken it.
std::string line_plot(const std::string& title, const std::string& unit, const Range& range,
                      const std::vector<Series>& series, const PlotAxis& axis = {});

// A bar for each row, with its parts one after another: values[part][row], in `unit`.
std::string bar_plot(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values);

// Draws one step of the ranks: the phases, with the buckets below them.
std::string step_plot(const TraceRecord& trace, int64_t step, size_t ranks);

// Draws the passes of a pipeline's ranks in one step: the spans of track "passes".
std::string pass_plot(const TraceRecord& trace, int64_t step, size_t ranks);

}  // namespace troika::observe::report
