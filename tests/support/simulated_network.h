// Endpoints in one thread, on a simulated network with a simulated clock. All events depend only on
// the seed. Frames, priorities and credit are the same as over sockets (net/send_queue.h,
// net/mailbox.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "troika/base/random.h"
#include "troika/net/endpoint.h"

namespace troika::test {

class SimulatedEndpoint;

struct SimulatedLinks {
  net::Duration least_latency = std::chrono::microseconds(50);
  net::Duration most_latency = std::chrono::microseconds(500);
  double bytes_per_second = 1e9;
};

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(uint64_t seed, SimulatedLinks links = {});
  ~SimulatedNetwork();
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  // Adds an endpoint, which the network owns.
  net::Endpoint& add(const std::string& name);
  // Connects two endpoints, and notifies both.
  void connect(const std::string& a, const std::string& b);
  // Ends the connection. Both endpoints are notified after a latency.
  void cut(const std::string& a, const std::string& b);
  // From now on this endpoint does nothing, like a stopped process. No peer is notified.
  void stop(const std::string& name);

  net::Duration now() const { return now_; }
  // Runs the next event. Returns false if there is no event until this time.
  bool step(net::Duration until);

 private:
  friend class SimulatedEndpoint;

  net::Ticket at(net::Duration time, std::function<void()> event);
  net::Duration latency();

  Random random_;
  const SimulatedLinks links_;
  net::Duration now_{0};
  net::Ticket last_ticket_ = 0;
  std::map<std::pair<net::Duration, net::Ticket>, std::function<void()>> events_;
  std::map<std::string, std::unique_ptr<SimulatedEndpoint>> endpoints_;
};

}  // namespace troika::test
