#include "troika/observe/report/run_record.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/observe/loggers/csv.h"

namespace troika::observe::report {

std::vector<Series> parse_metrics(const std::string& text, const std::string& name) {
  auto lines = split(text, '\n');
  lines.pop_back();
  const auto columns = lines.empty() ? std::nullopt : parse_csv_header(lines.front());
  if (!columns) {
    throw Error("observe", ErrorKind::usage,
                {.what = fmt::format("line 1 of {} is damaged", name),
                 .got = fmt::format("`{}`", lines.empty() ? text : lines.front()),
                 .expected = "column names, the first of them `step`"});
  }
  std::vector<Series> metrics;
  for (const auto& column : *columns) metrics.push_back({column, {}});
  for (size_t l = 1; l < lines.size(); ++l) {
    const auto row = parse_csv_row(lines[l], metrics.size());
    if (!row) {
      log::warn("line {} of {} is damaged and left out", l + 1, name);
      continue;
    }
    for (size_t c = 0; c < metrics.size(); ++c) {
      if (row->cells[c])
        metrics[c].points.push_back({static_cast<double>(row->step), *row->cells[c]});
    }
  }
  return metrics;
}

RunRecord read_run(const std::filesystem::path& folder) {
  const auto config = folder / "config.toml";
  if (!std::filesystem::exists(config)) {
    throw Error("observe", ErrorKind::usage,
                {.what = folder.string() + " is not the folder of a run",
                 .got = std::filesystem::is_directory(folder) ? "a folder without config.toml"
                                                              : "no such folder",
                 .expected = "one that troika train wrote, e.g. runs/run"});
  }
  RunRecord run{.name = std::filesystem::absolute(folder).lexically_normal().filename().string(),
                .config = read_file(config),
                .metrics = {},
                .summary = {},
                .trace = {},
                .simulated = {}};
  // A path such as "runs/run/" has no file name.
  if (run.name.empty()) {
    run.name = std::filesystem::absolute(folder).lexically_normal().parent_path().filename();
  }
  const auto metrics = folder / "metrics.csv";
  if (std::filesystem::exists(metrics)) {
    run.metrics = parse_metrics(read_file(metrics), metrics.string());
  }
  const auto summary = folder / "summary.json";
  if (std::filesystem::exists(summary)) run.summary = read_summary(summary);
  const auto trace = folder / "trace.json";
  if (std::filesystem::exists(trace)) run.trace = read_trace(trace);
  const auto simulated = folder / "simulated.json";
  if (std::filesystem::exists(simulated)) run.simulated = read_trace(simulated);
  return run;
}

}  // namespace troika::observe::report
