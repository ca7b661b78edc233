// The clock of a simulation: its pending events, and the flows whose ends are events too.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/rank_state.h"
#include "troika/plan/simulation/run_flows.h"

namespace troika::plan {

// Events in the order of their times, those at one time in the order in which they were pushed.
// Deterministic.
class EventLoop {
 public:
  // `links` must outlive it.
  explicit EventLoop(const ClusterLinks& links) : flows_(links) {}

  // Returns the time of the latest event, in seconds from the begin.
  double now() const { return now_; }
  // Adds an event that is not before now(), and numbers it.
  void push(Event event);
  // Begins a flow of `bytes` now; `next` comes when it ends.
  void begin(const std::vector<LinkUse>& uses, double bytes, const Event& next) {
    flows_.begin(now_, uses, bytes, next);
  }
  // Sends a message from rank `from` as RunFlows::send(); `arrival` comes when it arrives.
  void send(int from, const Event& arrival) { flows_.send(now_, from, arrival); }
  // Advances to the next event and returns it; nothing if there is neither an event nor a flow. All
  // events of an instant come before flows get new rates.
  std::optional<Event> next();

  // Returns the traffic of each link until now().
  std::vector<LinkTraffic> traffic() const { return flows_.traffic(now_); }

 private:
  RunFlows flows_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double now_ = 0;
};

}  // namespace troika::plan
