// Compares a metric of several runs over optimizer steps, measured time and simulated time.
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

struct CompareOptions {
  // The metric's column in metrics.csv. Empty: the first of validation/accuracy, validation/loss
  // and train/loss that all runs have.
  std::string metric = {};
  // Whether lower values are better. Nothing: if the name has "loss", "error" or "perplexity".
  std::optional<bool> lower_is_better = {};
};

struct ComparedRun {
  std::string name;
  Series metric;  // over optimizer steps
  // The median time of an optimizer step, without validations and checkpoints.
  double measured_step_seconds = std::numeric_limits<double>::quiet_NaN();
  // The mean time of a step in simulated.json; not a number if the run's folder has none.
  double simulated_step_seconds = std::numeric_limits<double>::quiet_NaN();

  // The run's best value, which need not be the last one.
  double best(bool lower_is_better) const;
  // The first step at which the metric is at least as good as `value`; nothing if it never is.
  std::optional<double> step_of(double value, bool lower_is_better) const;
};

struct ComparedRuns {
  std::string metric;
  bool lower_is_better = false;
  std::vector<ComparedRun> runs;

  // The best value that all runs have reached.
  double reached_by_all() const;
};

// Reads the runs' folders. Throws the errors of read_run(), and Error(usage) for fewer than two
// runs, a run without summary.json (one that was killed or is still running), and a metric of
// which a run has no finite value.
ComparedRuns compare_runs(const std::vector<std::filesystem::path>& folders,
                          const CompareOptions& options);

// Returns a table for a terminal: a line for each run, with the step and the times at which it
// reached the best value that all runs have reached.
std::string comparison_text(const ComparedRuns& compared);
// Returns a page like that of a run, with the metric over steps, over measured and over simulated
// time.
std::string comparison_page(const ComparedRuns& compared);

}  // namespace troika::observe::report
