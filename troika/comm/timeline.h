// One trace of all ranks of a group, on rank 0's clock.
#pragma once

#include <filesystem>
#include <functional>

#include "troika/base/trace.h"
#include "troika/comm/group.h"

namespace troika::comm {

using Now = std::function<Clock::time_point()>;

// Measures the offset of this rank's clock, as `now` reads it, from rank 0's clock; zero on rank 0.
// Collective; blocks while each rank in turn exchanges a few messages with rank 0.
ClockOffset measure_clock_offset(const Group& group, const Now& now = Clock::now);

// Records this rank's events and merges the events of all ranks into one file.
class Timeline {
 public:
  // Measures the clocks. Collective, blocking. Times of events must come from `now`.
  explicit Timeline(Group group, Now now = Clock::now);

  Trace& trace() { return trace_; }

  // Writes the trace of all ranks to `path`, completely or not at all. Collective, blocking; call
  // once. Measures the clocks again and gathers the events on rank 0, which needs memory for all
  // events as text. `name` is this rank's, e.g. "rank 3"; its host name is appended.
  void write(const std::filesystem::path& path, const std::string& name);

 private:
  const Group group_;
  const Now now_;
  ClockOffset first_;
  Clock::time_point origin_;  // the file's time zero, on rank 0's clock
  Trace trace_;
};

}  // namespace troika::comm
