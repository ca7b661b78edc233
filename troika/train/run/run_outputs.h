// Where the numbers of a run go: the loggers and the progress bar of rank 0.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/observe/loggers/logger.h"
#include "troika/observe/progress.h"

namespace troika::train {

struct TrainOptions;

// The id of the run whose logs are in the folder; empty where the folder does not say.
std::string id_of_logged_run(const std::filesystem::path& folder);

// On ranks other than 0 nothing happens.
class RunOutputs {
 public:
  // Into `folder`. With `resumed`, rows of up to there stay; else the logs begin anew, and `run.id`
  // beside them says that they are those of the run `id`.
  RunOutputs(bool is_main, const std::filesystem::path& folder, const TrainOptions& options,
             const std::string& id, std::optional<observe::LogPosition> resumed);

  void log(int64_t step, const observe::MetricValues& values);
  void flush();

  void start_progress(const std::string& label, int64_t total, int64_t done);
  // From now on, beside rate and loss; a name replaces its earlier value.
  void show(const observe::MetricValues& metrics);
  void advance(int64_t samples);
  // Adds the loss of an earlier micro-batch to the mean that the progress bar shows.
  void add_loss(double loss);
  void finish_progress();

 private:
  std::vector<std::unique_ptr<observe::Logger>> loggers_;
  std::optional<observe::ProgressBar> progress_;
};

}  // namespace troika::train
