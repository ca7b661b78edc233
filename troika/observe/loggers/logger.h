// Receives the numbers of a run. A logger is one destination; the trainer has a list of loggers, on
// rank 0 only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika::observe {

// Metric names (such as `train/loss`) and their values, in display order.
using MetricValues = std::vector<std::pair<std::string, double>>;

// The position in the logs from which a run resumes.
struct LogPosition {
  int64_t step = 0;
  int64_t rows = 0;  // calls of log() at `step` before the checkpoint was written
};

class Logger {
 public:
  virtual ~Logger() = default;

  // Records the values at this optimizer step. When the call returns, the values survive a kill of
  // the process. Called from one thread. Accepts NaN and infinities.
  virtual void log(int64_t step, const MetricValues& values) = 0;
  // Waits until all logged values also survive a crash of the machine.
  virtual void flush() = 0;
};

// The names of the kinds of loggers in options.
std::vector<std::string> logger_names();
// Opens loggers of these kinds (logger_names()) in the folder of a run: metrics.csv, TensorBoard
// events, metrics.jsonl, metrics.prom. Starts new logs. With `resumed`, keeps rows up to that
// position, and also damaged lines, which a warning names. If the process is killed meanwhile, the
// files are unchanged.
std::vector<std::unique_ptr<Logger>> open_loggers(const std::vector<std::string>& names,
                                                  const std::filesystem::path& folder,
                                                  const std::string& run,
                                                  std::optional<LogPosition> resumed = {});

}  // namespace troika::observe
