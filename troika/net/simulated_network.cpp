#include "troika/net/simulated_network.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/net/simulated_endpoint.h"

namespace troika::net {

SimulatedNetwork::SimulatedNetwork(uint64_t seed, SimulatedLinks links)
    : random_(seed), links_(std::move(links)) {}

SimulatedNetwork::~SimulatedNetwork() = default;

Endpoint& SimulatedNetwork::add(const std::string& name, SimulatedAccess access) {
  auto& endpoint = endpoints_[name];
  TROIKA_CHECK(!endpoint, "names of simulated endpoints differ");
  endpoint = std::make_unique<SimulatedEndpoint>(name, *this, access);
  return *endpoint;
}

void SimulatedNetwork::connect(const std::string& a, const std::string& b) {
  auto& first = *endpoints_.at(a);
  auto& second = *endpoints_.at(b);
  first.set_up(second, true);
  second.set_up(first, true);
}

void SimulatedNetwork::cut(const std::string& a, const std::string& b) {
  auto* const first = endpoints_.at(a).get();
  auto* const second = endpoints_.at(b).get();
  at(now_ + latency(), [first, second] { first->set_up(*second, false); });
  at(now_ + latency(), [first, second] { second->set_up(*first, false); });
}

void SimulatedNetwork::stop(const std::string& name) {
  endpoints_.at(name)->stop();
}

SimulatedTraffic SimulatedNetwork::traffic(const std::string& name) const {
  return endpoints_.at(name)->traffic();
}

Ticket SimulatedNetwork::at(Duration time, std::function<void()> event, bool is_timer) {
  events_.push_back({time, ++last_ticket_, is_timer, std::move(event)});
  std::push_heap(events_.begin(), events_.end());
  if (is_timer) timers_.insert(last_ticket_);
  return last_ticket_;
}

Duration SimulatedNetwork::latency() {
  const auto range = (links_.most_latency - links_.least_latency).count();
  return links_.least_latency + Duration(random_.below(static_cast<uint64_t>(range) + 1));
}

bool SimulatedNetwork::step(Duration until) {
  if (events_.empty() || events_.front().time > until) {
    now_ = until;
    return false;
  }
  std::pop_heap(events_.begin(), events_.end());
  const auto event = std::move(events_.back());
  events_.pop_back();
  // A timer that was cancelled is no event.
  if (event.is_timer && timers_.erase(event.ticket) == 0) return true;
  now_ = event.time;
  ++events_run_;
  event.run();
  return true;
}

}  // namespace troika::net
