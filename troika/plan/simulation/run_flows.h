// The messages and collectives of a simulation as flows over links.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/rank_state.h"
#include "troika/plan/simulation/shared_links.h"

namespace troika::plan {

// Flows, each with the event that follows its end. The messages from one rank to another are sent
// one after the other, as a connection of a run sends them; all other flows share links fairly.
class RunFlows {
 public:
  // `links` must outlive it.
  explicit RunFlows(const ClusterLinks& links) : links_(links), shared_(links.bandwidths()) {}

  // Begins a flow of `bytes`; `next` follows it.
  void begin(double now, const std::vector<LinkUse>& uses, double bytes, const Event& next);
  // Begins a message, or lets it wait for the earlier ones from rank `from` to its receiver.
  // `arrival` has its receiver and its bytes.
  void send(double now, int from, const Event& arrival);
  // Returns the next flow to end, and when; nothing if there is no flow.
  std::optional<SharedLinks::End> next_end(double now) { return shared_.next_end(now); }
  // Ends the flow that next_end() returned, and returns the event that follows at its `time`: for a
  // message, after the latency of its path.
  Event finish(const SharedLinks::End& end);

  std::vector<LinkTraffic> traffic(double now) const { return shared_.traffic(now); }

 private:
  struct Owner {
    Event next;
    int from = -1;  // the sender of a message
    double latency = 0;
  };

  void begin_owned(double now, const std::vector<LinkUse>& uses, double bytes, const Owner& owner);
  void begin_message(double now, int from, const Event& arrival);

  const ClusterLinks& links_;
  SharedLinks shared_;
  std::vector<Owner> owners_;  // by flow
  // The arrivals of messages that are not sent yet, by sender and receiver; the first one has
  // begun.
  std::map<std::pair<int, int>, std::deque<Event>> unsent_;
};

}  // namespace troika::plan
