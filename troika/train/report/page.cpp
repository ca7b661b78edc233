#include "troika/train/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/train/report/plots.h"
#include "troika/train/report/stragglers.h"
#include "troika/train/report/style.h"

namespace troika::train::report {

namespace {

// More rows than this are thinned out: the whole table is metrics.csv.
constexpr size_t kRows = 200;
// Ranks whose lanes are drawn.
constexpr size_t kLanes = 8;

using Cells = std::vector<std::string>;

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : "–";
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "–";
}

// The first cell of a row is its heading. Cells are text.
std::string table(const std::string& caption, const Cells& header, const std::vector<Cells>& rows) {
  std::string html = "<table><caption>" + escape(caption) + "</caption>\n<tr>";
  for (const auto& cell : header) html += "<th scope=\"col\">" + escape(cell) + "</th>";
  html += "</tr>\n";
  for (const auto& row : rows) {
    html += "<tr><th scope=\"row\">" + escape(row.front()) + "</th>";
    for (size_t c = 1; c < row.size(); ++c) html += "<td>" + escape(row[c]) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string folded(const std::string& content) {
  return "<details><summary>As numbers</summary>\n" + content + "</details>\n";
}

std::string section(const std::string& title, const std::string& content) {
  return "<section>\n<h2>" + escape(title) + "</h2>\n" + content + "</section>\n";
}

std::string paragraph(const std::string& text) {
  return "<p>" + escape(text) + "</p>\n";
}

std::string facts(const RunRecord& run) {
  if (!run.summary) {
    return paragraph(
        "There is no summary.json: the run was killed, or is still going on. What follows is what "
        "it left so far.");
  }
  const RunSummary& s = *run.summary;
  int64_t peak = 0;
  for (const int64_t bytes : s.peak_resident_bytes) peak = std::max(peak, bytes);
  return table(
      "The run in numbers", {"quantity", "value"},
      {{"status", s.status},
       {"processes", std::to_string(s.world_size)},
       {"optimizer steps", std::to_string(s.steps)},
       {"samples trained on", std::to_string(s.samples)},
       {"complete epochs", std::to_string(s.epochs)},
       {"train loss", number(s.train_loss)},
       {"validation loss", number(s.validation_loss)},
       {"validation accuracy", percent(s.validation_accuracy)},
       {"throughput", number(s.samples_per_second) + " samples/s"},
       {"median step", number(s.median_step_milliseconds) + " ms"},
       {"wall time", std::isfinite(s.seconds) ? human_seconds(s.seconds) : "–"},
       {"peak memory of a process", peak > 0 ? human_bytes(static_cast<double>(peak)) : "–"},
       {"versions", "Troika " + s.troika_version + ", LibTorch " + s.torch_version}});
}

// The run's metrics that have one of these names.
std::vector<Series> pick(const RunRecord& run, const std::vector<std::string>& names) {
  std::vector<Series> picked;
  for (const auto& name : names) {
    for (const Series& series : run.metrics) {
      if (series.name == name && !series.points.empty()) picked.push_back(series);
    }
  }
  return picked;
}

std::string table_of(const Series& series) {
  const auto& points = series.points;
  const size_t rows = std::min(points.size(), kRows);
  std::vector<Cells> cells;
  for (size_t i = 0; i < rows; ++i) {
    const Point& point = points[rows == 1 ? 0 : i * (points.size() - 1) / (rows - 1)];
    cells.push_back({fmt::format("{:.0f}", point.x), number(point.y)});
  }
  const std::string thinned =
      rows < points.size()
          ? fmt::format(" ({} rows of {}; all are in metrics.csv)", rows, points.size())
          : "";
  return table(series.name + thinned, {"step", series.name}, cells);
}

std::string curves(const RunRecord& run, const std::string& title, const std::string& unit,
                   const std::vector<std::string>& names) {
  const auto series = pick(run, names);
  if (series.empty()) return section(title, paragraph("The run logged none."));
  std::string tables;
  for (const Series& one : series) tables += table_of(one);
  return section(title, line_plot(title, unit, series) + folded(tables));
}

Cells rank_names(size_t ranks) {
  Cells names;
  for (size_t r = 0; r < ranks; ++r) names.push_back(fmt::format("rank {}", r));
  return names;
}

std::string spaced(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string breakdown(const RunRecord& run) {
  const std::string title = "Where a step's time goes";
  if (!run.summary || run.summary->phase_milliseconds.empty()) {
    return section(title, paragraph("Runs write this into summary.json when they finish."));
  }
  const auto& phases = run.summary->phase_milliseconds;
  const auto ranks = rank_names(phases.front().milliseconds.size());
  Cells parts, header{"rank"};
  std::vector<std::vector<double>> values;
  std::vector<Cells> rows;
  for (const auto& rank : ranks) rows.push_back({rank});
  for (const auto& [phase, milliseconds] : phases) {
    header.push_back(spaced(phase) + ", ms");
    for (size_t r = 0; r < rows.size(); ++r) rows[r].push_back(number(milliseconds[r]));
    if (phase == "step") continue;
    parts.push_back(spaced(phase));
    values.push_back(milliseconds);
  }
  return section(
      title,
      paragraph("Medians over all steps, on each rank. Exposed communication is what the backward "
                "pass did not hide, and the wait for ranks that were later.") +
          bar_plot(title, "ms", ranks, parts, values) +
          folded(table("Medians of the phases, which need not add up to the median step", header,
                       rows)));
}

std::string stragglers(const RunRecord& run) {
  const std::string title = "Stragglers";
  if (!run.summary || run.summary->phase_milliseconds.empty() || run.summary->world_size == 1) {
    return section(title,
                   paragraph("Nothing to compare: it takes a finished run of several ranks."));
  }
  const auto found = find_stragglers(run.summary->phase_milliseconds);
  const std::string meaning =
      "A rank is one when its own time a step, without the exposed communication in which it waits "
      "for others, is more than 10 % above the median of all ranks.";
  if (found.empty()) return section(title, paragraph("None. " + meaning));
  std::vector<Cells> rows;
  for (const auto& one : found) {
    rows.push_back(
        {fmt::format("rank {}", one.rank), number(one.own_milliseconds),
         fmt::format("+{}", percent(one.excess)),
         fmt::format("{} (+{} ms)", spaced(one.phase), number(one.phase_excess_milliseconds))});
  }
  return section(
      title, paragraph(meaning) +
                 table("Ranks that the others wait for",
                       {"rank", "own time a step, ms", "above the median", "most of it in"}, rows));
}

std::string timeline(const RunRecord& run) {
  const std::string title = "Communication beside the backward pass";
  if (!run.trace) {
    return section(title,
                   "<p>The run has no timeline. <code>troika train CONFIG --trace</code> "
                   "writes one.</p>\n");
  }
  const TraceRecord& trace = *run.trace;
  std::vector<Cells> rows;
  Overlap all;
  for (size_t r = 0; r < trace.ranks.size(); ++r) {
    const Overlap rank = overlap(trace.ranks[r]);
    all.communication += rank.communication;
    all.hidden += rank.hidden;
    rows.push_back({trace.ranks[r].name, number(rank.communication), number(rank.hidden),
                    percent(rank.hidden / rank.communication), number(trace.clock_errors[r])});
  }
  const size_t lanes = std::min(trace.ranks.size(), kLanes);
  const int64_t step = typical_step(trace);
  std::string html = paragraph(
      lanes == 1 ? "One rank has nobody to average with."
                 : fmt::format("{} of the time in which gradient buckets were averaged lies beside "
                               "the backward pass. A bucket's time includes the wait for ranks "
                               "that are later with it.",
                               percent(all.hidden / all.communication)));
  html +=
      paragraph(fmt::format("Step {}, of median length, on {} of {} ranks. Phases are coloured as "
                            "above; buckets lie below "
                            "them.",
                            step, lanes, trace.ranks.size()));
  html += step_plot(trace, step, lanes);
  html +=
      table("Averaging of buckets, means over steps after the first",
            {"rank", "buckets, ms a step", "hidden, ms a step", "hidden", "clock error, µs"}, rows);
  html +=
      "<p>The whole timeline is <code>trace.json</code>: open it in "
      "<code>ui.perfetto.dev</code>.</p>\n";
  return section(title, html);
}

}  // namespace

std::string make_page(const RunRecord& run) {
  const std::string name = escape(run.summary ? run.summary->name : run.name);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         name + " – Troika</title>\n<style>\n" + style_sheet() + "</style>\n</head>\n<body>\n<h1>" +
         name + "</h1>\n" + facts(run) +
         curves(run, "Loss", "loss", {"train/loss", "train/epoch_loss", "validation/loss"}) +
         curves(run, "Accuracy", "share of samples", {"validation/accuracy"}) +
         curves(run, "Throughput", "samples/s", {"train/samples_per_second"}) + breakdown(run) +
         stragglers(run) + timeline(run) +
         section("Configuration", "<pre>" + escape(run.config) + "</pre>\n") + "</body>\n</html>\n";
}

std::filesystem::path write_report(const std::filesystem::path& run_folder) {
  const auto path = run_folder / "report.html";
  write_file_atomically(path, make_page(read_run(run_folder)));
  return path;
}

}  // namespace troika::train::report
