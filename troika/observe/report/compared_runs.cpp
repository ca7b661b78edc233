#include "troika/observe/report/compared_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>

#include "troika/base/error.h"
#include "troika/observe/report/comparison.h"
#include "troika/observe/report/html.h"
#include "troika/observe/report/plots.h"

namespace troika::observe::report {

namespace {

constexpr std::array<const char*, 3> kUsualMetrics{"validation/accuracy", "validation/loss",
                                                   "train/loss"};

bool is_better(double value, double other, bool lower_is_better) {
  return lower_is_better ? value < other : value > other;
}

// The column's finite values; no points if the run has none.
Series finite_values(const RunRecord& run, const std::string& metric) {
  Series result{metric, {}};
  for (const auto& series : run.metrics) {
    if (series.name != metric) continue;
    std::ranges::copy_if(series.points, std::back_inserter(result.points),
                         [](const Point& point) { return std::isfinite(point.y); });
  }
  return result;
}

std::string metric_of(const std::vector<RunRecord>& runs) {
  for (const auto* metric : kUsualMetrics) {
    const bool all_have = std::ranges::all_of(
        runs, [&](const RunRecord& run) { return !finite_values(run, metric).points.empty(); });
    if (all_have) return metric;
  }
  throw Error("observe", ErrorKind::usage,
              {.what = "runs have no metric in common that is compared by default",
               .got = "none",
               .expected = fmt::format("one of {}", fmt::join(kUsualMetrics, ", ")),
               .hint = "name a column of their metrics.csv with --metric"});
}

bool is_loss(const std::string& metric) {
  constexpr std::array kLower{"loss", "error", "perplexity"};
  return std::ranges::any_of(
      kLower, [&](const char* word) { return metric.find(word) != std::string::npos; });
}

double simulated_step(const RunRecord& run) {
  if (!run.simulated) return std::numeric_limits<double>::quiet_NaN();
  const auto phases = mean_phases(*run.simulated);
  const auto step = phases.find("step");
  return step == phases.end() ? std::numeric_limits<double>::quiet_NaN() : 1e-3 * step->second;
}

ComparedRun compared_run(const RunRecord& run, const std::filesystem::path& folder,
                         const std::string& metric) {
  if (!run.summary) {
    throw Error("observe", ErrorKind::usage,
                {.what = "a run that is compared has ended",
                 .got = folder.string() + " without summary.json",
                 .expected = "a finished, stopped or failed run"});
  }
  ComparedRun result{.name = run.name,
                     .metric = finite_values(run, metric),
                     .measured_step_seconds = 1e-3 * run.summary->median_step_milliseconds,
                     .simulated_step_seconds = simulated_step(run)};
  if (!result.metric.points.empty()) return result;
  throw Error("observe", ErrorKind::usage,
              {.what = "a run lacks the metric that is compared",
               .got = fmt::format("{} without a finite value of {}", folder.string(), metric),
               .expected = "a column of metrics.csv that all runs have"});
}

// A unit of time in which the longest of these runs has a readable number.
struct TimeUnit {
  const char* name;
  double seconds;
};

TimeUnit unit_for(double longest) {
  if (longest >= 2 * 3600) return {"hours", 3600};
  if (longest >= 2 * 60) return {"minutes", 60};
  return {"seconds", 1};
}

std::string cell(double value) {
  return std::isfinite(value) ? number(value) : "-";
}

using StepSeconds = double ComparedRun::*;

std::string chart(const ComparedRuns& compared, const std::string& title, const PlotAxis& axis,
                  const std::function<double(const ComparedRun&)>& step_size) {
  Range range;
  std::vector<Series> lines;
  for (const auto& run : compared.runs) {
    const double size = step_size(run);
    if (!std::isfinite(size)) continue;
    auto& line = lines.emplace_back(Series{run.name, run.metric.points});
    for (auto& point : line.points) {
      point.x *= size;
      range.include(point.x);
    }
  }
  return lines.empty() ? std::string() : line_plot(title, compared.metric, range, lines, axis);
}

std::string time_chart(const ComparedRuns& compared, const std::string& kind,
                       StepSeconds step_seconds) {
  double longest = 0;
  for (const auto& run : compared.runs) {
    const double last = run.metric.points.back().x * run.*step_seconds;
    if (std::isfinite(last)) longest = std::max(longest, last);
  }
  const auto unit = unit_for(longest);
  return chart(compared, fmt::format("{} over {} time", compared.metric, kind),
               {.label = fmt::format("{}, {}", unit.name, kind),
                .before = fmt::format("after {} ", unit.name),
                .tick_unit = 0},
               [&](const ComparedRun& run) { return run.*step_seconds / unit.seconds; });
}

// The cells of the table: name, best value, and what it took to reach what all have reached.
const Cells kHeader{"run",         "best",          "step time, ms",  "simulated, ms",
                    "steps to it", "seconds to it", "simulated to it"};

std::vector<Cells> rows_of(const ComparedRuns& compared) {
  const double value = compared.reached_by_all();
  std::vector<Cells> rows;
  for (const auto& run : compared.runs) {
    const double step = *run.step_of(value, compared.lower_is_better);
    rows.push_back({run.name, cell(run.best(compared.lower_is_better)),
                    cell(1e3 * run.measured_step_seconds), cell(1e3 * run.simulated_step_seconds),
                    cell(step), cell(step * run.measured_step_seconds),
                    cell(step * run.simulated_step_seconds)});
  }
  return rows;
}

std::string meaning(const ComparedRuns& compared) {
  return fmt::format("\"it\" is {} {}, the best value that all runs have reached.", compared.metric,
                     number(compared.reached_by_all()));
}

}  // namespace

double ComparedRun::best(bool lower_is_better) const {
  double result = metric.points.front().y;
  for (const auto& point : metric.points) {
    if (is_better(point.y, result, lower_is_better)) result = point.y;
  }
  return result;
}

std::optional<double> ComparedRun::step_of(double value, bool lower_is_better) const {
  for (const auto& point : metric.points) {
    if (!is_better(value, point.y, lower_is_better)) return point.x;
  }
  return std::nullopt;
}

double ComparedRuns::reached_by_all() const {
  double result = runs.front().best(lower_is_better);
  for (const auto& run : runs) {
    const double best = run.best(lower_is_better);
    if (is_better(result, best, lower_is_better)) result = best;
  }
  return result;
}

ComparedRuns compare_runs(const std::vector<std::filesystem::path>& folders,
                          const CompareOptions& options) {
  if (folders.size() < 2) {
    throw Error("observe", ErrorKind::usage,
                {.what = "runs that are compared",
                 .got = std::to_string(folders.size()),
                 .expected = "two or more"});
  }
  std::vector<RunRecord> records;
  std::set<std::string> names;
  for (const auto& folder : folders) {
    records.push_back(read_run(folder));
    names.insert(records.back().name);
  }
  ComparedRuns result;
  result.metric = options.metric.empty() ? metric_of(records) : options.metric;
  result.lower_is_better = options.lower_is_better.value_or(is_loss(result.metric));
  for (size_t i = 0; i < records.size(); ++i) {
    result.runs.push_back(compared_run(records[i], folders[i], result.metric));
    if (names.size() < records.size()) result.runs.back().name = folders[i].string();
  }
  return result;
}

std::string comparison_text(const ComparedRuns& compared) {
  auto rows = rows_of(compared);
  rows.insert(rows.begin(), kHeader);
  std::vector<size_t> widths(kHeader.size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t c = 1; c < row.size(); ++c) text += fmt::format("  {:>{}}", row[c], widths[c]);
    text += "\n";
  }
  return text + meaning(compared) + "\n";
}

std::string comparison_page(const ComparedRuns& compared) {
  const auto charts =
      chart(compared, compared.metric + " over steps", {}, [](const ComparedRun&) { return 1.0; }) +
      time_chart(compared, "measured", &ComparedRun::measured_step_seconds) +
      time_chart(compared, "simulated", &ComparedRun::simulated_step_seconds);
  const auto title = fmt::format("{} of {} runs", compared.metric, compared.runs.size());
  return page(
      title,
      section("Course", "<div class=\"charts\">\n" + charts + "</div>\n") +
          section("Times",
                  table("What it took", kHeader, rows_of(compared)) + paragraph(meaning(compared)) +
                      paragraph("Measured time is the number of optimizer steps times the "
                                "run's median step time: it has no validations, "
                                "checkpoints and restarts. Simulated time is the number of "
                                "steps times the mean step time of the run's "
                                "simulated.json; runs without this file are not in the "
                                "chart.")));
}

}  // namespace troika::observe::report
