#include "troika/plan/simulation/run_flows.h"

namespace troika::plan {

void RunFlows::begin(double now, const std::vector<LinkUse>& uses, double bytes,
                     const Event& next) {
  begin_owned(now, uses, bytes, {.next = next});
}

void RunFlows::send(double now, int from, const Event& arrival) {
  auto& unsent = unsent_[{from, arrival.who}];
  unsent.push_back(arrival);
  if (unsent.size() == 1) begin_message(now, from, arrival);
}

Event RunFlows::finish(const SharedLinks::End& end) {
  shared_.finish(end);
  const auto owner = owners_[end.flow];
  auto next = owner.next;
  next.time = end.time + owner.latency;
  if (owner.from < 0) return next;
  auto& unsent = unsent_[{owner.from, next.who}];
  unsent.pop_front();
  if (!unsent.empty()) begin_message(end.time, owner.from, unsent.front());
  return next;
}

void RunFlows::begin_owned(double now, const std::vector<LinkUse>& uses, double bytes,
                           const Owner& owner) {
  const auto flow = shared_.begin(now, uses, bytes);
  if (flow >= owners_.size()) owners_.resize(flow + 1);
  owners_[flow] = owner;
}

void RunFlows::begin_message(double now, int from, const Event& arrival) {
  const auto path = links_.path(from, arrival.who);
  begin_owned(now, path.uses, arrival.bytes,
              {.next = arrival, .from = from, .latency = path.latency});
}

}  // namespace troika::plan
