// Peers of a simulated network that seek groups.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/swarm/simulated_swarm.h"
#include "troika/swarm/averaging.h"
#include "troika/swarm/gossip.h"
#include "troika/swarm/matchmaking.h"

namespace troika::swarm {

// For Search::is_complete.
inline auto has_all(std::set<std::string> names) {
  return [names = std::move(names)](const std::vector<GroupMember>& members) {
    return std::ranges::all_of(names, [&](const auto& name) {
      return std::ranges::count(members, name, &GroupMember::name) > 0;
    });
  };
}

class Seekers {
 public:
  explicit Seekers(size_t count, uint64_t seed = 1) : network(seed) {
    for (size_t i = 0; i < count; ++i) add();
  }

  void add() {
    const size_t index = identities.size();
    identities.push_back(std::make_unique<Identity>(identity_of(index)));
    endpoints.push_back(&network.add(name(index)));
    directories.push_back(std::make_unique<GossipDirectory>(
        *endpoints[index], *identities[index],
        RecordRules{.run = "run", .kinds = {{kSeeking, is_seeking}}}, clock_of(network)));
    matchmakings.push_back(std::make_unique<Matchmaking>(*endpoints[index], *directories[index]));
    averagers.push_back(std::make_unique<Averager>(*endpoints[index]));
    directories[index]->watch([this, index](const Record&) { matchmakings[index]->reconsider(); });
    endpoints[index]->listen_to_peers([this, index](const net::PeerChange& change) {
      directories[index]->take_change(change);
      matchmakings[index]->take_change(change);
      averagers[index]->take_change(change);
    });
    for (size_t other = 0; other < index; ++other) network.connect(name(other), name(index));
  }
  const std::string& name(size_t peer) const { return identities[peer]->name(); }
  size_t index_of(const std::string& name) const {
    size_t index = 0;
    while (identities[index]->name() != name) ++index;
    return index;
  }
  // Seeks until `deadline` seconds from now.
  void seek(size_t peer, double deadline, Search search = {}) {
    search.deadline =
        directories[peer]->now() + std::chrono::duration_cast<WallTime>(seconds(deadline));
    matches.erase(peer);
    matchmakings[peer]->seek(search, [this, peer](const std::optional<Match>& match) {
      matches[peer] = match;
      ended[peer] = network.now();
    });
  }
  void kill(size_t peer) {
    network.stop(name(peer));
    for (size_t other = 0; other < identities.size(); ++other) {
      if (other != peer) network.cut(name(other), name(peer));
    }
  }
  // The indices of the members of the group of a peer; empty: it has none.
  std::vector<size_t> group_of(size_t peer) const {
    std::vector<size_t> group;
    const auto found = matches.find(peer);
    if (found == matches.end() || !found->second) return group;
    for (const auto& member : found->second->members) group.push_back(index_of(member.name));
    std::ranges::sort(group);
    return group;
  }
  std::set<std::string> all_names() const {
    std::set<std::string> names;
    for (const auto& identity : identities) names.insert(identity->name());
    return names;
  }

  net::SimulatedNetwork network;
  std::vector<std::unique_ptr<Identity>> identities;
  std::vector<net::Endpoint*> endpoints;
  std::vector<std::unique_ptr<GossipDirectory>> directories;
  std::vector<std::unique_ptr<Matchmaking>> matchmakings;
  std::vector<std::unique_ptr<Averager>> averagers;
  std::map<size_t, std::optional<Match>> matches;  // of searches that have ended
  std::map<size_t, net::Duration> ended;
};

}  // namespace troika::swarm
