// The other peers, and whose state leads. Internal to the room.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/averaging.h"
#include "troika/swarm/progress.h"
#include "troika/swarm/state_transfer.h"

namespace troika::swarm {

// The other peers, as far as this one knows them.
class Others {
 public:
  // `tracker` must outlive it. `mode` is that of this peer.
  Others(const ProgressTracker& tracker, Mode mode) : tracker_(tracker), mode_(mode) {}

  void take_change(const net::PeerChange& change);
  bool is_connected(const std::string& peer) const { return connected_.contains(peer); }
  // This peer has ended a step with these.
  void set_last_step(std::set<std::string> peers) { last_step_ = std::move(peers); }

  // The state that this peer should have.
  struct Lead {
    StateVersion version;
    bool is_own = false;
  };
  Lead lead() const;
  // The other peers that have the state that leads.
  std::vector<std::string> donors() const;
  // This peer, and the others that average with it now or soon: those with its state, and those of
  // its last step that have not ended it.
  std::set<std::string> expected() const;

 private:
  void visit_leaders(const std::function<void(const PeerProgress&)>& visit) const;

  const ProgressTracker& tracker_;
  const Mode mode_;
  std::set<std::string> connected_;
  std::set<std::string> last_step_;
};

}  // namespace troika::swarm
