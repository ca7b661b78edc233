// The plots of the page. Colours come from its style sheet: classes c0, c1, ... of kColours.
#pragma once

#include <string>
#include <vector>

#include "troika/observe/report/chart.h"
#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Lines over `steps`, the range of the x axis. Points that are not finite break their line. Up to
// 60 points of a series are marked by dots; of more than 1000, least and greatest ones stand for
// their neighbours. A line without dots is paler where there are others. A series has the colour of
// its stage, in every chart of every run, unless another of the chart has it.
std::string line_plot(const std::string& title, const std::string& unit, const Range& steps,
                      const std::vector<Series>& series);

// One bar a row, of parts one after another: values[part][row], in `unit`.
std::string bar_plot(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values);

// Draws one step of the ranks: the phases, and below them the buckets.
std::string step_plot(const TraceRecord& trace, int64_t step, size_t ranks);

}  // namespace troika::observe::report
