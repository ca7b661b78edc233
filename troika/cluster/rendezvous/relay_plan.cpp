#include "troika/cluster/rendezvous/relay_plan.h"

#include <algorithm>

namespace troika::cluster {

int most_connections(const RelayRules& rules, int world_size, int machines) {
  if (world_size < rules.from_world_size || machines < 0) return world_size;
  // The last relay of each machine may have fewer than ranks_each ranks.
  return std::min(world_size, 1 + machines + world_size / rules.ranks_each);
}

RelayPlan::Place RelayPlan::place(const Hello& hello, const std::string& endpoint) {
  const bool can_relay = hello.relay_port != 0 && !hello.machine.empty();
  // Rank 0 runs the server itself, so it needs no relay.
  if (hello.rank == 0 || hello.direct || !can_relay || hello.world_size < rules_.from_world_size) {
    return {};
  }
  const auto latest = latest_.find(hello.machine);
  if (latest != latest_.end() && latest->second.ranks < rules_.ranks_each) {
    ++latest->second.ranks;
    const Relay& relay = latest->second;
    return {Role::through, relay.rank, relay.port, relay.endpoint};
  }
  latest_.insert_or_assign(hello.machine, Relay{hello.rank, hello.relay_port, endpoint, 1});
  return {Role::relay};
}

}  // namespace troika::cluster
