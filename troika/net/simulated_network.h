// Endpoints in one thread, on a simulated network with a simulated clock. All events depend only on
// the seed. Frames, priorities and credit are the same as over sockets (net/send_queue.h,
// net/mailbox.h).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "troika/base/random.h"
#include "troika/net/endpoint.h"

namespace troika::net {

class SimulatedEndpoint;

// The path between any two endpoints.
struct SimulatedLinks {
  Duration least_latency = std::chrono::microseconds(50);
  Duration most_latency = std::chrono::microseconds(500);
  double bytes_per_second = 1e9;
  // Returns the bytes that a payload of `bytes` of a message of the channel counts on the links; at
  // least 1 for a payload that is not empty. Empty: as many as it has. With this, a short message
  // stands for a long one, and only its time is simulated.
  std::function<uint64_t(Channel channel, uint64_t bytes)> weigh = {};
};

// The link of an endpoint to the network, which all its connections share.
struct SimulatedAccess {
  double up = std::numeric_limits<double>::infinity();    // bytes per second
  double down = std::numeric_limits<double>::infinity();  // bytes per second
  Duration latency{0};                                    // each way, beside that of the path
};

// Bytes of frames, with their heads.
struct SimulatedTraffic {
  uint64_t sent = 0;
  uint64_t received = 0;
};

// An endpoint sends one frame of each connection at a time, in turn, at the speed of its access. A
// receiver takes frames at the speed of its own access, in the order of their arrival. A connection
// to a slow receiver does not slow its sender down: what is under way has no bound but credit
// (net/frame.h).
class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(uint64_t seed, SimulatedLinks links = {});
  ~SimulatedNetwork();
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  // Adds an endpoint, which the network owns. Throws CheckError for a name that another one has.
  Endpoint& add(const std::string& name, SimulatedAccess access = {});
  // Connects two endpoints, and notifies both.
  void connect(const std::string& a, const std::string& b);
  // Ends the connection. Both endpoints are notified after a latency.
  void cut(const std::string& a, const std::string& b);
  // From now on this endpoint does nothing, like a stopped process. No peer is notified.
  void stop(const std::string& name);

  SimulatedTraffic traffic(const std::string& name) const;
  Duration now() const { return now_; }
  // Runs the next event. Returns false if there is no event until this time.
  bool step(Duration until);
  // Events that have run.
  uint64_t events() const { return events_run_; }

 private:
  friend class SimulatedEndpoint;

  struct Event {
    Duration time{};
    Ticket ticket = 0;
    bool is_timer = false;
    std::function<void()> run;

    // The first event is the greatest.
    bool operator<(const Event& other) const {
      return std::pair(time, ticket) > std::pair(other.time, other.ticket);
    }
  };

  Ticket at(Duration time, std::function<void()> event, bool is_timer = false);
  bool cancel(Ticket timer) { return timers_.erase(timer) > 0; }
  Duration latency();

  Random random_;
  const SimulatedLinks links_;
  Duration now_{0};
  Ticket last_ticket_ = 0;
  uint64_t events_run_ = 0;
  std::vector<Event> events_;  // a heap
  std::unordered_set<Ticket> timers_;
  std::map<std::string, std::unique_ptr<SimulatedEndpoint>> endpoints_;
};

}  // namespace troika::net
