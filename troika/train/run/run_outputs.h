// Writes the numbers of a run to the loggers and the progress bar of rank 0.
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

// Returns the id of the run whose logs are in the folder; empty if unknown.
std::string id_of_logged_run(const std::filesystem::path& folder);

// Does nothing on ranks other than 0.
class RunOutputs {
 public:
  // Writes logs into `folder`. With `resumed`, keeps rows up to that position. Otherwise starts new
  // logs and stores the run's `id` in the file `run.id` beside them.
  RunOutputs(bool is_main, const std::filesystem::path& folder, const TrainOptions& options,
             const std::string& id, std::optional<observe::LogPosition> resumed);

  void log(int64_t step, const observe::MetricValues& values);
  void flush();

  void start_progress(const std::string& label, int64_t total, int64_t done);
  // Shows metrics beside rate and loss from now on. A new value of a name replaces the earlier
  // value.
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
