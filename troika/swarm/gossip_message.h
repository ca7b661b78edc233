// The messages between neighbours of a gossip directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/swarm/record.h"

namespace troika::swarm {

// Either records, or what the sender holds.
struct GossipMessage {
  // The group of the sender (gossip_neighbours.h); empty if its other neighbours do not get the
  // message.
  std::string group = {};

  // The records with hashes in [from, to), with the times at which they were created.
  struct Holdings {
    std::string from, to;
    std::map<std::string, int64_t> have;  // by hash
  };

  std::vector<SignedRecord> records = {};
  // Beginnings of the names of those that get the records, too. Empty for receivers of the group.
  std::set<std::string> sent_to = {};
  std::optional<Holdings> holdings = {};
};

// Throws Error(swarm, failure) for texts of another form. Does not check signatures.
GossipMessage read_gossip(const std::string& text);

// Reads a message as read_gossip() does. Many peers in one process may share what they have read.
using GossipReader = std::function<std::shared_ptr<const GossipMessage>(const std::string& text)>;
// Keeps nothing.
GossipReader own_reader();
// Keeps the last messages. Not thread-safe.
GossipReader sharing_reader();

// As many texts as the records need, each below the longest message.
std::vector<std::shared_ptr<const std::string>> record_messages(
    const std::vector<std::string>& records, const std::vector<std::string>& sent_to,
    const std::string& group);
std::string holdings_message(const GossipMessage::Holdings& holdings, const std::string& group);

}  // namespace troika::swarm
