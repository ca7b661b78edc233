// Plots as inline SVG. Colours come from the page's style sheet: classes c0, c1, ... of kColours.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "troika/train/report/run_record.h"

namespace troika::train::report {

// Okabe and Ito's colours (Color Universal Design, 2008), but black and yellow: apart for colour
// blind eyes, on white and on black.
inline constexpr std::array<const char*, 6> kColours{"#e69f00", "#56b4e9", "#0072b2",
                                                     "#d55e00", "#009e73", "#999999"};

// `text` as it stands in HTML, also within an attribute's quotes.
std::string escape(const std::string& text);

// Lines over steps with axes and a legend. Points that are not finite break their line; a series
// of one point is a dot.
std::string line_plot(const std::string& title, const std::string& unit,
                      const std::vector<Series>& series);

// One bar a row, of parts one after another: values[part][row], in `unit`.
std::string bar_plot(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values);

// Draws one step of the ranks: the phases, and below them the buckets.
std::string step_plot(const TraceRecord& trace, int64_t step, size_t ranks);

}  // namespace troika::train::report
