#include "troika/observe/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/observe/report/comparison.h"
#include "troika/observe/report/curves.h"
#include "troika/observe/report/html.h"
#include "troika/observe/report/pipeline.h"
#include "troika/observe/report/plots.h"
#include "troika/observe/report/roofline.h"
#include "troika/observe/report/stragglers.h"

namespace troika::observe::report {

namespace {

// The number of ranks that are drawn.
constexpr size_t kLanes = 8;

// Omits facts that were not measured.
std::string facts(const RunRecord& run) {
  if (!run.summary) {
    return paragraph(
        "There is no summary.json: the run was killed, or has not ended. This page "
        "shows what it has written so far.");
  }
  const RunSummary& s = *run.summary;
  std::string failure;
  std::string html = "<dl class=\"facts\">\n";
  const auto fact = [&](const char* name, const std::string& value) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, escape(value));
  };
  const auto fact_if = [&](bool is_known, const char* name, const std::string& value) {
    if (is_known) fact(name, value);
  };
  fact("status", s.status);
  fact_if(std::isfinite(s.train_loss), "train loss", number(s.train_loss));
  fact_if(std::isfinite(s.validation_loss), "validation loss", number(s.validation_loss));
  fact_if(std::isfinite(s.validation_accuracy), "validation accuracy",
          percent(s.validation_accuracy));
  fact_if(std::isfinite(s.samples_per_second), "throughput",
          number(s.samples_per_second) + " samples/s");
  fact_if(std::isfinite(s.median_step_milliseconds), "median step",
          number(s.median_step_milliseconds) + " ms");
  fact_if(std::isfinite(s.seconds), "wall time", human_seconds(s.seconds));
  fact("processes", std::to_string(s.world_size));
  fact("optimizer steps", std::to_string(s.steps));
  fact("samples trained on", std::to_string(s.samples));
  fact("complete epochs", std::to_string(s.epochs));
  if (!s.failure.empty()) {
    failure =
        "<p class=\"failure\"><strong>The run failed:</strong> " + escape(s.failure) + "</p>\n";
  }
  fact("versions", "Troika " + s.troika_version + ", LibTorch " + s.torch_version);
  return failure + html + "</dl>\n";
}

Cells rank_names(size_t ranks) {
  Cells names;
  for (size_t r = 0; r < ranks; ++r) names.push_back(fmt::format("rank {}", r));
  return names;
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
          bar_plot("Median step of each rank", "ms", ranks, parts, values) +
          folded("As numbers",
                 table("Medians of the phases, which need not add up to the median step", header,
                       rows)));
}

std::string stragglers(const RunRecord& run) {
  const std::string title = "Stragglers";
  if (!run.summary || run.summary->phase_milliseconds.empty() || run.summary->world_size == 1) {
    return section(title,
                   paragraph("Nothing to compare: it takes a finished run of several ranks."));
  }
  const double seconds =
      static_cast<double>(run.summary->steps) * run.summary->median_step_milliseconds / 1e3;
  if (!tells_of_stragglers(run.summary->steps, seconds)) {
    return section(
        title, paragraph(fmt::format("Too short to tell: {} steps in {}. It takes {} steps and {} "
                                     "of them, as what else a machine does disturbs shorter ones.",
                                     run.summary->steps, human_seconds(seconds), kStragglerSteps,
                                     human_seconds(kStragglerSeconds))));
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

// A table of the ranks' communication, and the part of it that is hidden.
struct OverlapTable {
  Overlap all;
  std::vector<Cells> rows;
};

OverlapTable overlap_table(const TraceRecord& trace, Overlap (*of)(const RankTimeline& rank)) {
  OverlapTable table;
  for (size_t r = 0; r < trace.ranks.size(); ++r) {
    const Overlap rank = of(trace.ranks[r]);
    table.all.communication += rank.communication;
    table.all.hidden += rank.hidden;
    table.rows.push_back({trace.ranks[r].name, number(rank.communication), number(rank.hidden),
                          percent(rank.hidden / rank.communication),
                          number(trace.clock_errors[r])});
  }
  return table;
}

std::string timeline(const RunRecord& run) {
  const std::string title = "Communication beside computation";
  if (!run.trace) {
    return section(title,
                   "<p>The run has no timeline. <code>troika train CONFIG --trace</code> "
                   "writes one.</p>\n");
  }
  const TraceRecord& trace = *run.trace;
  const auto buckets = overlap_table(trace, bucket_overlap);
  const auto sums = overlap_table(trace, tensor_overlap);
  const bool has_sums = sums.all.communication > 0;
  const bool shows_buckets = buckets.all.communication > 0 || !has_sums;
  const auto share = [](const Overlap& of) { return percent(of.hidden / of.communication); };
  const size_t lanes = std::min(trace.ranks.size(), kLanes);
  const int64_t step = typical_step(trace);
  std::string html;
  if (lanes == 1) html += paragraph("One rank has nobody to average with.");
  if (shows_buckets && lanes > 1) {
    html +=
        paragraph(fmt::format("{} of the time in which gradient buckets were averaged lies "
                              "beside the backward pass. A bucket's time includes the wait for "
                              "ranks that are later with it.",
                              share(buckets.all)));
  }
  if (has_sums) {
    html +=
        paragraph(fmt::format("{} of the time of the traced sums over the tensor axis lies "
                              "beside computation: of weight gradients, or of the forward pass "
                              "of another micro-batch.",
                              share(sums.all)));
  }
  html += paragraph(fmt::format("Step {}, of median length, on {} of {} ranks:", step, lanes,
                                trace.ranks.size()));
  html += step_plot(trace, step, lanes);
  const auto table_of = [](const std::string& name, const std::string& what,
                           const OverlapTable& of) {
    return table(name,
                 {"rank", what + ", ms a step", "hidden, ms a step", "hidden", "clock error, µs"},
                 of.rows);
  };
  const std::string over = ", means over steps after the first";
  if (shows_buckets) html += table_of("Averaging of buckets" + over, "buckets", buckets);
  if (has_sums) html += table_of("Traced sums over the tensor axis" + over, "sums", sums);
  html +=
      "<p>The whole timeline is <code>trace.json</code>: open it in "
      "<code>ui.perfetto.dev</code>.</p>\n";
  return section(title, html);
}

std::string bytes_text(int64_t bytes) {
  return bytes > 0 ? human_bytes(static_cast<double>(bytes)) : "–";
}

std::string memory(const RunRecord& run) {
  const std::string title = "Memory, predicted and measured";
  if (!run.summary || run.summary->peak_resident_bytes.empty()) {
    return section(title, paragraph("Runs write this into summary.json when they finish."));
  }
  const RunSummary& s = *run.summary;
  constexpr double kMebibyte = 1 << 20;
  const auto ranks = rank_names(s.peak_resident_bytes.size());
  const auto predicted = [&](size_t r) {
    return r < s.predicted_tensor_bytes.size() ? s.predicted_tensor_bytes[r] : 0;
  };
  std::vector<Cells> rows;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const int64_t tensors = s.peak_tensor_bytes.empty() ? 0 : s.peak_tensor_bytes[r];
    rows.push_back({ranks[r], bytes_text(predicted(r)), bytes_text(tensors),
                    bytes_text(s.peak_resident_bytes[r])});
  }
  std::string plot;
  if (!s.peak_tensor_bytes.empty()) {
    Cells bars;
    std::vector<std::vector<double>> values(2);
    const auto bar = [&](const std::string& name, int64_t predicted, int64_t measured) {
      bars.push_back(name);
      values[0].push_back(static_cast<double>(predicted) / kMebibyte);
      values[1].push_back(static_cast<double>(measured) / kMebibyte);
    };
    // Ranks that hold the same parts of the model have one prediction.
    const auto& all = s.predicted_tensor_bytes;
    const bool are_equal = std::ranges::adjacent_find(all, std::not_equal_to()) == all.end();
    if (!all.empty() && are_equal) bar("predicted", all.front(), 0);
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!are_equal) bar(ranks[r] + ", predicted", predicted(r), 0);
      bar(ranks[r], 0, s.peak_tensor_bytes[r]);
    }
    plot = bar_plot("Peak of tensors in training steps", "MiB", bars, {"predicted", "measured"},
                    values);
  }
  return section(title, plot + table("Peaks of each rank",
                                     {"rank", "tensors in training steps, predicted", "measured",
                                      "whole process, measured"},
                                     rows));
}

std::string options_of(const RunRecord& run, const ChangedOptions& changed_options) {
  const std::string title = "Options that differ from their defaults";
  std::vector<config::Setting> changed;
  try {
    changed = changed_options(run.config);
  } catch (const Error& problem) {
    return section("Options", paragraph("This version does not know them all: " +
                                        std::string(problem.what())) +
                                  "<pre class=\"wide\">" + escape(run.config) + "</pre>\n");
  }
  if (changed.empty()) return section(title, paragraph("None."));
  std::string html = "<dl class=\"options\">\n";
  for (const auto& option : changed) {
    html += fmt::format(
        "<div><dt><code>{} = {}</code> <span>default "
        "<code>{}</code></span></dt><dd>{}</dd></div>\n",
        option.key, escape(option.value), escape(option.initial), escape(option.help));
  }
  return section(title, html + "</dl>\n<p>All options are in <code>config.toml</code>.</p>\n");
}

// Explains the missing curve of a run that is shorter than its logging interval: the log then has
// only means over epochs.
std::string why_no_steps(const RunRecord& run) {
  const auto logged = [&](const Series& s) { return s.name == "train/loss" && !s.points.empty(); };
  if (!run.summary || run.summary->steps == 0 || std::ranges::any_of(run.metrics, logged))
    return {};
  return paragraph(
      fmt::format("The run made {} steps and logged the loss of none of them: a smaller "
                  "trainer.log_every_n_steps shows the course within epochs.",
                  run.summary->steps));
}

}  // namespace

std::string make_page(const RunRecord& run, const ChangedOptions& changed_options) {
  return page(run.summary ? run.summary->name : run.name,
              facts(run) + section("Metrics", why_no_steps(run) + curves(run.metrics)) +
                  breakdown(run) + pipeline(run) + roofline(run) + stragglers(run) + memory(run) +
                  timeline(run) + comparison(run) + options_of(run, changed_options));
}

std::filesystem::path write_report(const std::filesystem::path& run_folder,
                                   const ChangedOptions& changed_options) {
  const auto path = run_folder / "report.html";
  write_file_atomically(path, make_page(read_run(run_folder), changed_options));
  return path;
}

}  // namespace troika::observe::report
