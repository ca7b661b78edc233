// The clock of a simulation whose events are calls.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/event_loop.h"

namespace troika::plan {

// Makes calls at their times, in seconds from the beginning; those of one time in the order in
// which they were asked for. Deterministic.
class Timeline {
 public:
  using Call = std::function<void()>;

  // `links` must outlive it.
  explicit Timeline(const ClusterLinks& links) : links_(links), loop_(links) {}

  double now() const { return loop_.now(); }
  void after(double seconds, Call call);
  // Sends a message from a device, behind its earlier ones to the same device (RunFlows::send()).
  // `arrives` is called at the receiver.
  void send(int from, int to, double bytes, Call arrives);
  // Sends a message beside earlier ones to the same device.
  void send_beside(int from, int to, double bytes, Call arrives);
  // Moves bytes over these links, and calls `ends` when all have crossed them.
  void move(const std::vector<LinkUse>& uses, double bytes, Call ends);
  // Sends a message of a few bytes, which waits for no other one and fills no link.
  void tell(int from, int to, Call arrives);
  // Makes the calls until there are none, or stop() was called.
  void run();
  void stop() { is_stopped_ = true; }

  std::vector<LinkTraffic> traffic() const { return loop_.traffic(); }

 private:
  // Returns the number under which the call is kept.
  size_t keep(Call call);

  const ClusterLinks& links_;
  EventLoop loop_;  // Event::what is the number of the call
  std::vector<Call> calls_;
  std::vector<size_t> unused_;  // numbers
  bool is_stopped_ = false;
};

// Servers that each do one thing after the other.
class ServerQueues {
 public:
  // `timeline` must outlive it.
  ServerQueues(Timeline& timeline, size_t servers) : timeline_(timeline), free_at_(servers, 0) {}

  // Calls `then` when the server has done its earlier work and then worked for so many seconds.
  void work(size_t server, double seconds, Timeline::Call then);

 private:
  Timeline& timeline_;
  std::vector<double> free_at_;  // by server
};

}  // namespace troika::plan
