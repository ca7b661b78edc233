// Reads the files in a run's folder.
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

// A column of metrics.csv over steps: the rows with a number in the column, which may be NaN or
// infinite.
struct Series {
  std::string name;
  std::vector<Point> points;
};

struct RunRecord {
  std::string name;    // the folder's name
  std::string config;  // the text of config.toml
  std::vector<Series> metrics;
  std::optional<RunSummary> summary;  // empty: the run was killed or is still running
  std::optional<TraceRecord> trace;   // empty: the run had no --trace
  // simulated.json, a trace of troika simulate; empty: there is none.
  std::optional<TraceRecord> simulated;
};

// Throws Error(usage) for a folder without a run, and for damaged files, naming file and position;
// damaged rows of metrics.csv are skipped as in parse_metrics().
RunRecord read_run(const std::filesystem::path& folder);

// Returns the columns of text written by CsvLogger; `name` is used in messages. Skips a damaged row
// with a warning that names its line, and silently skips an incomplete last line, which a killed
// process leaves. Throws Error(usage) if the first line has no column names.
std::vector<Series> parse_metrics(const std::string& text, const std::string& name);

}  // namespace troika::observe::report
