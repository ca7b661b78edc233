// Reads back the files that a run left in its folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/observe/report/timeline.h"
#include "troika/observe/summary.h"

namespace troika::observe::report {

struct Point {
  double x;
  double y;
};

// One column of metrics.csv over steps: the rows that have a number in it, which may be NaN or
// infinite.
struct Series {
  std::string name;
  std::vector<Point> points;
};

struct RunRecord {
  std::string name;    // of its folder
  std::string config;  // the text of config.toml
  std::vector<Series> metrics;
  std::optional<RunSummary> summary;  // none: the run was killed, or is still going on
  std::optional<TraceRecord> trace;   // none: it ran without --trace
};

// Throws Error(usage) for a folder that is not a run's, and naming file and place of what is
// damaged; but damaged rows of metrics.csv are left out, as parse_metrics() does.
RunRecord read_run(const std::filesystem::path& folder);

// The columns of a text as CsvLogger writes it; `name` is for messages. A damaged row is left out
// with a warning that names its line, a last line without its end silently: a kill cut it. Throws
// Error(usage) where the first line has no names of columns.
std::vector<Series> parse_metrics(const std::string& text, const std::string& name);

}  // namespace troika::observe::report
