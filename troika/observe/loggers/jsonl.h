// `metrics.jsonl`: one JSON object a line (jsonlines.org) for each call of log().
#pragma once

#include <filesystem>
#include <optional>

#include "troika/base/file.h"
#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// {"step": 50, "time": seconds since 1970 in UTC, name: value, ...}. What JSON has no number for is
// "NaN", "Infinity" or "-Infinity", as in the JSON of Protocol Buffers. Each line is one write.
class JsonlLogger : public Logger {
 public:
  // Starts the file anew; with `resumed` its lines of up to there, and damaged ones, stay.
  explicit JsonlLogger(const std::filesystem::path& path, std::optional<LogPosition> resumed = {});

  // Throws Error for a metric called `step` or `time`.
  void log(int64_t step, const MetricValues& values) override;
  void flush() override;

 private:
  File file_;
};

}  // namespace troika::observe
