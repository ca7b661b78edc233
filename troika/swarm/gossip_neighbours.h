// The neighbours of a peer in a gossip directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/swarm/gossip_message.h"

namespace troika::swarm {

// The beginning of a name, which tells neighbours apart.
inline std::string_view short_name(std::string_view peer) {
  return peer.substr(0, 16);
}

// Each neighbour has a slot, a small number that no other neighbour has at the time.
//
// The group of a peer names the peer with its neighbours. Peers of equal groups have the same
// neighbours beside each other. So what one of them has sent to all its neighbours, all neighbours
// of the others have, and messages between them need no list of receivers.
class GossipNeighbours {
 public:
  explicit GossipNeighbours(const std::string& own_name);

  // Returns the slot of a new neighbour, or null if it is one already.
  std::optional<size_t> add(const std::string& peer);
  // Does nothing for other peers.
  void remove(const std::string& peer);

  std::optional<size_t> slot(const std::string& peer) const;
  const std::map<std::string, size_t>& slots() const { return slots_; }

  const std::string& group() const { return group_; }
  // Sets the group that a neighbour has told. Does nothing if it is empty.
  void set_group(const std::string& peer, const std::string& group);
  // Whether a neighbour has told the group that this peer has.
  bool is_of_group(const std::string& peer) const;

  // Beginnings of their names.
  std::vector<std::string> short_names() const;
  // The slots of those to whom a neighbour has sent the message, too.
  std::vector<size_t> receivers_of(const GossipMessage& message) const;

 private:
  void toggle(const std::string& peer);

  std::map<std::string, size_t> slots_;
  std::vector<size_t> free_;  // slots below the greatest one
  std::map<std::string, std::string> groups_;
  uint64_t sum_ = 0;  // of the group
  std::string group_;
};

}  // namespace troika::swarm
