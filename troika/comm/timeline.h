// One trace of all ranks of a group, on rank 0's clock.
#pragma once

#include <filesystem>
#include <functional>

#include "troika/base/trace.h"
#include "troika/comm/group.h"

namespace troika::comm {

using Now = std::function<Clock::time_point()>;

// How this rank's clock, as `now` reads it, lies to rank 0's; on rank 0, no offset. Called by all
// ranks; blocks while each rank in turn exchanges a few messages with rank 0.
ClockOffset measure_clock_offset(const Group& group, const Now& now = Clock::now);

// This rank's events, and what it takes to put those of all ranks into one file.
class Timeline {
 public:
  // Measures the clocks: called by all ranks; blocks. Times of events must be `now`'s.
  explicit Timeline(Group group, Now now = Clock::now);

  Trace& trace() { return trace_; }

  // Called by all ranks, once; blocks. Measures the clocks again, gathers the events, and rank 0
  // writes them to `path`, whole or not at all. Rank 0 needs memory for the events of all ranks as
  // text. `name` is this rank's, e.g. "rank 3"; its host is added.
  void write(const std::filesystem::path& path, const std::string& name);

 private:
  const Group group_;
  const Now now_;
  ClockOffset first_;
  Clock::time_point origin_;  // a time of rank 0's: the file's zero
  Trace trace_;
};

}  // namespace troika::comm
