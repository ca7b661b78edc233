#include "troika/swarm/others.h"

#include <map>
#include <string_view>
#include <tuple>

#include "troika/base/log.h"

namespace troika::swarm {

void Others::take_change(const net::PeerChange& change) {
  if (change.is_up) {
    connected_.insert(change.peer);
  } else {
    connected_.erase(change.peer);
  }
}

void Others::update_bans() {
  auto banned = bans_.banned_by(tracker_.nodes());
  if (banned == banned_) return;
  for (const auto& peer : banned) {
    if (banned_.contains(peer)) continue;
    if (peer == tracker_.own_name()) {
      log::warn(
          "[swarm] the other peers have banned this one: what it contributes counts for nobody");
    } else {
      log::warn("[swarm] {} is banned", peer.substr(0, 8));
    }
  }
  banned_ = std::move(banned);
  tracker_.ban(banned_);
}

// The other peers that define the state.
void Others::visit_leaders(const std::function<void(const PeerProgress&)>& visit) const {
  tracker_.visit_others([&](const PeerProgress& peer) {
    if (!peer.is_client && connected_.contains(peer.peer)) visit(peer);
  });
}

Others::Lead Others::lead() const {
  using Version = std::tuple<int64_t, std::string_view, bool>;
  std::map<Version, size_t> states;  // with their peers
  visit_leaders([&](const PeerProgress& peer) {
    ++states[{peer.epoch, peer.history, peer.is_partial}];
  });
  const Version own{tracker_.epoch(), tracker_.history(), tracker_.is_partial()};
  // Clients and auxiliary peers lead only themselves, while they know no node.
  if (mode_ == Mode::node || states.empty()) ++states[own];
  const auto rank = [](const auto& state) {
    const auto& [epoch, history, is_partial] = state.first;
    return std::tuple(epoch, !is_partial, state.second);
  };
  auto best = states.begin();
  for (auto state = states.begin(); state != states.end(); ++state) {
    // The least history wins among equals.
    if (rank(*state) > rank(*best)) best = state;
  }
  const auto& [epoch, history, is_partial] = best->first;
  return {.version = {epoch, std::string(history), is_partial}, .is_own = best->first == own};
}

std::vector<std::string> Others::donors() const {
  const auto leading = lead().version;
  std::vector<std::string> names;
  visit_leaders([&](const PeerProgress& peer) {
    if (StateVersion{peer.epoch, peer.history, peer.is_partial} == leading) {
      names.push_back(peer.peer);
    }
  });
  return names;
}

std::set<std::string> Others::expected() const {
  std::set<std::string> names{tracker_.own_name()};
  tracker_.visit_others([&](const PeerProgress& peer) {
    if (!connected_.contains(peer.peer)) return;
    const bool is_equal = peer.epoch == tracker_.epoch() && peer.history == tracker_.history();
    // It still averages, or its records are late, and it will come.
    const bool is_late = peer.epoch < tracker_.epoch() && last_step_.contains(peer.peer);
    if (is_equal || is_late) names.insert(peer.peer);
  });
  return names;
}

}  // namespace troika::swarm
