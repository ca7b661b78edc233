// A group of peers on a simulated network that average vectors.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/swarm/simulated_swarm.h"
#include "troika/swarm/averaging.h"

namespace troika::swarm {

// Members a, b, c, ..., all connected.
class SimulatedGroup {
 public:
  using Values = std::shared_ptr<std::vector<double>>;

  SimulatedGroup(const std::vector<Mode>& modes, const std::vector<size_t>& parts,
                 net::SimulatedLinks links = {}, uint64_t seed = 1)
      : network(seed, links) {
    group.id = 17;
    for (size_t i = 0; i < modes.size(); ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      group.members.push_back({name, modes[i], parts[i]});
      auto& endpoint = network.add(name);
      endpoints.push_back(&endpoint);
      averagers.push_back(std::make_unique<Averager>(endpoint));
      endpoint.listen_to_peers([averager = averagers.back().get()](const net::PeerChange& change) {
        averager->take_change(change);
      });
      for (size_t j = 0; j < i; ++j) network.connect(group.members[j].name, name);
    }
  }

  void begin(size_t member, Values values, double weight, AveragingOptions<double> options = {}) {
    averagers[member]->begin<double>(
        group, std::move(values), weight, std::move(options),
        [this, member](const AveragingResult& result) { results[member] = result; });
  }
  // As a process that ends: its peers are told.
  void kill(size_t member) {
    network.stop(group.members[member].name);
    for (const auto& other : group.members) {
      if (other.name != group.members[member].name) {
        network.cut(other.name, group.members[member].name);
      }
    }
  }

  net::SimulatedNetwork network;
  AveragingGroup group;
  std::vector<net::Endpoint*> endpoints;
  std::vector<std::unique_ptr<Averager>> averagers;
  std::map<size_t, AveragingResult> results;
};

}  // namespace troika::swarm
