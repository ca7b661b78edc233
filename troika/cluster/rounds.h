// Which launches take part in which round of an elastic run: the rules, without sockets or clocks
// of its own. After torchrun's c10d rendezvous (torch/distributed/elastic/rendezvous), but the host
// decides instead of all nodes editing one record.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/agent_wire.h"

namespace troika::cluster {

struct RoundRules {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  Milliseconds last_call_timeout{};
  Milliseconds join_timeout{};
  Milliseconds stop_timeout{};  // a launch told to stop that has not ended its ranks then is lost
};

// Agents, the launches, have numbers in the order in which they came.
class Rounds {
 public:
  using Send = std::function<void(int agent, const Frame& frame)>;
  // `next_place` gives each round the address and port of rank 0; the rest is filled in here. A
  // frame `refused` or `over` is the last one for its agent. `now` is the clock of due().
  Rounds(RoundRules rules, AgentHello host, std::function<LaunchPlace()> next_place, Send send,
         std::function<net::Duration()> now);

  // Says why not, to the newcomer alone.
  std::optional<Refusal> admit(int agent, const AgentHello& hello);
  void failing(int agent);
  void ended(int agent, const RoundEnd& end);
  void depart(int agent, int code);
  void lost(int agent, const std::string& reason);  // no error for one that is not there any more
  void end_all(const Refusal& why);

  // When to call late(); nothing: never.
  std::optional<net::Duration> due() const;
  // `note` follows the hint of an error.
  void late(const std::string& note);

 private:
  enum class Phase { gathering, running, stopping, over };
  struct Agent {
    AgentHello hello;
    bool departing = false;
  };

  void gather();
  // Starts a round if it can, or sees to it that it will.
  void consider();
  void start();
  void stop(bool may_save, const std::string& why);
  void stop_after_failure(int agent);
  void remove(int agent);
  void conclude_if_ended();
  void conclude();
  void end_with(int code, const std::string& why);
  // The launches that take part if a round starts now: the host first.
  std::vector<int> ready() const;
  std::string who(int agent) const;

  const RoundRules rules_;
  const AgentHello host_;
  const std::function<LaunchPlace()> next_place_;
  const Send send_;
  const std::function<net::Duration()> now_;

  std::map<int, Agent> agents_;
  Phase phase_ = Phase::gathering;
  net::Duration join_due_;
  std::optional<net::Duration> last_call_, stop_due_;
  std::optional<int> host_code_;  // the host departs, and with it the run
  int round_ = 0, restarts_ = 0;

  // These describe the round that is going on.
  int size_ = 0;
  std::set<int> open_;  // that have yet to end
  std::vector<RoundEnd> ends_;
  bool changes_ = false;  // it ends, or ended, because agents come or go
};

}  // namespace troika::cluster
