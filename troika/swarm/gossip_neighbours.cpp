#include "troika/swarm/gossip_neighbours.h"

#include <fmt/format.h>

#include "troika/swarm/identity.h"

namespace troika::swarm {

GossipNeighbours::GossipNeighbours(const std::string& own_name) {
  toggle(own_name);
}

// Adds a peer to the group, or removes it.
void GossipNeighbours::toggle(const std::string& peer) {
  sum_ ^= std::stoull(digest_of(peer).substr(0, 16), nullptr, 16);
  group_ = fmt::format("{:016x}", sum_);
}

std::optional<size_t> GossipNeighbours::add(const std::string& peer) {
  if (slots_.contains(peer)) return std::nullopt;
  size_t slot = slots_.size();
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  }
  slots_.emplace(peer, slot);
  toggle(peer);
  return slot;
}

void GossipNeighbours::remove(const std::string& peer) {
  const auto found = slots_.find(peer);
  if (found == slots_.end()) return;
  free_.push_back(found->second);
  slots_.erase(found);
  groups_.erase(peer);
  toggle(peer);
}

std::optional<size_t> GossipNeighbours::slot(const std::string& peer) const {
  const auto found = slots_.find(peer);
  return found == slots_.end() ? std::nullopt : std::optional(found->second);
}

void GossipNeighbours::set_group(const std::string& peer, const std::string& group) {
  if (!group.empty() && slots_.contains(peer)) groups_[peer] = group;
}

bool GossipNeighbours::is_of_group(const std::string& peer) const {
  const auto found = groups_.find(peer);
  return found != groups_.end() && found->second == group_;
}

std::vector<std::string> GossipNeighbours::short_names() const {
  std::vector<std::string> names;
  for (const auto& [peer, slot] : slots_) names.emplace_back(short_name(peer));
  return names;
}

std::vector<size_t> GossipNeighbours::receivers_of(const GossipMessage& message) const {
  std::vector<size_t> found;
  const bool are_all = message.group == group_;
  // Both are sorted.
  auto next = message.sent_to.begin();
  for (const auto& [peer, slot] : slots_) {
    const auto own = short_name(peer);
    while (next != message.sent_to.end() && *next < own) ++next;
    if (are_all || (next != message.sent_to.end() && *next == own)) found.push_back(slot);
  }
  return found;
}

}  // namespace troika::swarm
