// Where the numbers of a run go. One logger is one sink; the trainer holds a list of them, on rank
// 0 alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika::observe {

// Metric names (`train/loss`) with their values, in the order to show them.
using MetricValues = std::vector<std::pair<std::string, double>>;

// Up to where the log of a run stands when the run goes on from a checkpoint.
struct LogPosition {
  int64_t step = 0;
  int64_t rows = 0;  // calls of log() at `step` before the checkpoint was written
};

class Logger {
 public:
  virtual ~Logger() = default;

  // Records the values at this optimizer step. What was logged survives a kill of the process when
  // this returns. Called from one thread; NaN and infinities are values like others.
  virtual void log(int64_t step, const MetricValues& values) = 0;
  // Waits until all that was logged survives a crash of the machine too.
  virtual void flush() = 0;
};

// The names that options have for the kinds of loggers.
std::vector<std::string> logger_names();
// Loggers of these kinds (logger_names()) into the folder of a run: metrics.csv, TensorBoard
// events, metrics.jsonl, metrics.prom. They begin anew; with `resumed`, rows of up to there stay,
// and so do damaged lines, which a warning names. A kill meanwhile leaves the files as they were.
std::vector<std::unique_ptr<Logger>> open_loggers(const std::vector<std::string>& names,
                                                  const std::filesystem::path& folder,
                                                  const std::string& run,
                                                  std::optional<LogPosition> resumed = {});

}  // namespace troika::observe
