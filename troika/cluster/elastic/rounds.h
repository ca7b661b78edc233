// The choice of launches for each round of an elastic run: the rules, without sockets or a clock.
// Modelled on torchrun's c10d rendezvous (torch/distributed/elastic/rendezvous), but the host
// decides, instead of all nodes editing a shared record.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/elastic/agent_wire.h"
#include "troika/cluster/elastic/launches.h"
#include "troika/cluster/elastic/round_results.h"

namespace troika::cluster {

struct RoundRules {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  Milliseconds last_call_timeout{};
  Milliseconds join_timeout{};
  // A launch that was told to stop and has not ended its ranks after this time counts as lost.
  Milliseconds stop_timeout{};
};

// Agents are the launches. They are numbered in the order of arrival.
class Rounds {
 public:
  using Send = std::function<void(int agent, const Frame& frame)>;
  // `next_place` provides the run id and, for each round, the address and port of rank 0; this
  // class sets the other fields. A `refused` or `over` frame is the last one for its agent. `now`
  // is the clock of due().
  Rounds(RoundRules rules, AgentHello host, std::function<LaunchPlace()> next_place, Send send,
         std::function<net::Duration()> now);

  // Adds an agent, or returns why it is refused.
  std::optional<Refusal> admit(int agent, const AgentHello& hello);
  void failing(int agent);
  void ended(int agent, const RoundEnd& end);
  void depart(int agent, int code);
  void lost(int agent, const std::string& reason);  // no effect for an agent already removed
  void end_all(const Refusal& why);

  // When late() must be called next; none: not needed.
  std::optional<net::Duration> due() const;
  // `note` is appended to the hint of an error.
  void late(const std::string& note);

 private:
  enum class Phase { gathering, running, stopping, over };

  void gather();
  // Starts a round if possible, or starts the last-call timeout.
  void consider();
  void start();
  void stop(bool may_save, const std::string& why);
  void stop_after_failure(int agent);
  void conclude_if_ended();
  void conclude();
  void end_with(int code, const std::string& why);

  const RoundRules rules_;
  const std::function<LaunchPlace()> next_place_;
  const Send send_;
  const std::function<net::Duration()> now_;

  Launches agents_;
  Phase phase_ = Phase::gathering;
  net::Duration join_due_;
  std::optional<net::Duration> last_call_, stop_due_;
  std::optional<int> host_code_;  // set once the host departs, which ends the run
  int round_ = 0, restarts_ = 0;
  RoundResults results_;  // of the current round
  bool changes_ = false;  // the current round ends, or has ended, because agents join or leave
};

}  // namespace troika::cluster
