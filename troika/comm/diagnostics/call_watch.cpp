#include "troika/comm/diagnostics/call_watch.h"

#include <utility>

namespace troika::comm {

CallWatch::CallWatch(int rank, std::function<std::string(int rank)> name)
    : deadlocks_(rank, std::move(name)) {}

std::vector<StalledCall> CallWatch::stalled(const GroupRegister& groups) {
  std::vector<StalledCall> stalls;
  for (const auto& [id, group] : groups.all()) {
    if (group.stall_warning == Milliseconds(0)) continue;
    const auto progress = group.recorder->progress();
    if (progress.since < group.stall_warning) continue;
    const auto [warned, first] = warned_.try_emplace(id, -1);
    if (std::exchange(warned->second, progress.sequence) == progress.sequence) continue;
    stalls.push_back({id, progress, group.recorder->status().call});
  }
  return stalls;
}

}  // namespace troika::comm
