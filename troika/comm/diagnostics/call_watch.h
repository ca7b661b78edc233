// Finds calls of this rank that do not end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/diagnostics/deadlock.h"
#include "troika/comm/diagnostics/group_register.h"

namespace troika::comm {

// A call that runs for longer than the stall_warning of its group.
struct StalledCall {
  uint32_t group = 0;  // id
  Progress progress;
  std::string call;
};

// stalled() and forget() are called by one thread at a time, find_deadlock() by one thread.
class CallWatch {
 public:
  // `name` returns the name of a rank for error messages.
  CallWatch(int rank, std::function<std::string(int rank)> name);

  // Returns each stalled call once.
  std::vector<StalledCall> stalled(const GroupRegister& groups);
  // Called when this rank leaves a group.
  void forget(uint32_t group) { warned_.erase(group); }
  // Does what DeadlockWatch::look() does. Blocks while ranks are asked.
  std::optional<Error> find_deadlock(Milliseconds longest, const DeadlockWatch::Ask& ask) {
    return deadlocks_.look(longest, ask);
  }

 private:
  std::map<uint32_t, int64_t> warned_;  // the last call that stalled() has returned, by group
  DeadlockWatch deadlocks_;
};

}  // namespace troika::comm
