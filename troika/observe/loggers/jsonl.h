// `metrics.jsonl`: one JSON object per line (jsonlines.org) for each call of log().
#pragma once

#include <filesystem>
#include <optional>

#include "troika/base/file.h"
#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// Writes {"step": 50, "time": seconds since 1970 in UTC, name: value, ...}. Non-finite values are
// "NaN", "Infinity" or "-Infinity", as in the JSON of Protocol Buffers. Each line is written at
// once.
class JsonlLogger : public Logger {
 public:
  // Starts a new file; with `resumed`, keeps the lines up to that position, and damaged lines.
  explicit JsonlLogger(const std::filesystem::path& path, std::optional<LogPosition> resumed = {});

  // Throws Error for a metric named `step` or `time`.
  void log(int64_t step, const MetricValues& values) override;
  void flush() override;

 private:
  File file_;
};

}  // namespace troika::observe
