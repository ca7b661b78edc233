// The launcher's last words: which rank failed first, why, and what became of the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/exit_status.h"
#include "troika/cluster/failure.h"

namespace troika::cluster {

// How one rank ended.
struct RankEnd {
  int rank = 0;
  ExitStatus status;
  int64_t ended_ns = 0;               // CLOCK_REALTIME at which the launcher saw it
  std::optional<int64_t> stopped_ns;  // when the launcher told it to stop, if it did
  bool had_to_be_killed = false;      // it ignored that
  std::optional<FailureNote> note;    // what it reported itself
  std::string last_error_line;        // the last non-empty line of its standard error
  bool is_shown = false;              // standard error of the launch has its lines as they are
  std::filesystem::path log;
};

// The rank that failed first: by the time in its note, else by when its end was seen. Ranks that
// only report another's failure (exit code 3, ErrorKind::peer) count after all others, those the
// launcher stopped only when they had noted a failure before. Null when none failed by itself.
const RankEnd* first_failure(const std::vector<RankEnd>& ends);

// The exit code of ranks that saved and ended because they were asked to (ExitStatus::saved), the
// least where they differ; nothing where there is none, or some rank ended in any other way than
// that or success.
std::optional<int> saved_code(const std::vector<RankEnd>& ends);

// Several lines, the last ended. The first line names `first`, or where that only reports the
// failure of another rank, the rank that had ended with exit code 0 by then. `host` is shown when
// not empty.
std::string report(const std::vector<RankEnd>& ends, const RankEnd& first, const std::string& host);

// On standard error, at once.
void say(const std::string& text);

}  // namespace troika::cluster
