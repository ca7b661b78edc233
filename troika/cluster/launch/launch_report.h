// The launcher's final report: which rank failed first, why, and how the others ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/ranks/exit_status.h"
#include "troika/cluster/ranks/failure.h"

namespace troika::cluster {

// How one rank ended.
struct RankEnd {
  int rank = 0;
  std::string role;  // for messages: "worker 1"; empty: the rank's number
  ExitStatus status;
  int64_t ended_ns = 0;               // CLOCK_REALTIME when the launcher noticed the end
  std::optional<int64_t> stopped_ns;  // when the launcher told the rank to stop, if it did
  bool had_to_be_killed = false;      // the rank ignored the stop request
  std::optional<FailureNote> note;    // the rank's own error report
  std::string last_error_line;        // the last non-empty line on its standard error
  bool is_shown = false;              // its lines appear unchanged on the launcher's standard error
  std::filesystem::path log;
};

// Returns the rank that failed first, or null if no rank failed by itself. Orders by the time in
// the rank's note, or otherwise by the time the launcher noticed its end. Ranks that only report
// another's failure (exit code 3, ErrorKind::peer) come after all others. A rank that the launcher
// stopped counts only if it had noted a failure before.
const RankEnd* first_failure(const std::vector<RankEnd>& ends);

// Returns the lowest exit code of the ranks that saved and ended on request (ExitStatus::saved).
// nullopt if there are none, or if some rank neither saved nor succeeded.
std::optional<int> saved_code(const std::vector<RankEnd>& ends);

// Returns several lines, each with a newline. The first line names `first`. But if `first` only
// reports another rank's failure, and another rank had already ended with exit code 0, the line
// names that rank. Shows `host` unless it is empty.
std::string report(const std::vector<RankEnd>& ends, const RankEnd& first, const std::string& host);

// Writes to standard error and flushes.
void say(const std::string& text);

}  // namespace troika::cluster
