#include "troika/train/report/run_record.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika::train::report {

namespace {

[[noreturn]] void damaged_line(const std::string& name, size_t line, const std::string& got,
                               const std::string& expected) {
  throw Error("train", ErrorKind::usage,
              {.what = fmt::format("line {} of {} is damaged", line, name),
               .got = got,
               .expected = expected});
}

double cell_number(const std::string& cell, const std::string& name, size_t line) {
  const auto number = parse_double(cell);
  if (!number) damaged_line(name, line, fmt::format("`{}`", cell), "a number");
  return *number;
}

}  // namespace

std::vector<Series> parse_metrics(const std::string& text, const std::string& name) {
  auto lines = split(text, '\n');
  lines.pop_back();
  const auto header = lines.empty() ? std::vector<std::string>() : split(lines.front(), ',');
  if (header.empty() || header.front() != "step") {
    damaged_line(name, 1, fmt::format("`{}`", lines.empty() ? text : lines.front()),
                 "column names, the first of them `step`");
  }
  std::vector<Series> metrics;
  for (size_t c = 1; c < header.size(); ++c) metrics.push_back({header[c], {}});
  for (size_t l = 1; l < lines.size(); ++l) {
    const auto cells = split(lines[l], ',');
    if (cells.size() != header.size()) {
      damaged_line(name, l + 1, fmt::format("{} cells", cells.size()),
                   fmt::format("{}, one a column", header.size()));
    }
    const double step = cell_number(cells.front(), name, l + 1);
    for (size_t c = 1; c < cells.size(); ++c) {
      if (cells[c].empty()) continue;
      metrics[c - 1].points.push_back({step, cell_number(cells[c], name, l + 1)});
    }
  }
  return metrics;
}

RunRecord read_run(const std::filesystem::path& folder) {
  const auto config = folder / "config.toml";
  if (!std::filesystem::exists(config)) {
    throw Error("train", ErrorKind::usage,
                {.what = folder.string() + " is not the folder of a run",
                 .got = std::filesystem::is_directory(folder) ? "a folder without config.toml"
                                                              : "no such folder",
                 .expected = "one that troika train wrote, e.g. runs/run"});
  }
  RunRecord run{.name = std::filesystem::absolute(folder).lexically_normal().filename().string(),
                .config = read_file(config),
                .metrics = {},
                .summary = {},
                .trace = {}};
  // Of "runs/run/".
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
  return run;
}

}  // namespace troika::train::report
