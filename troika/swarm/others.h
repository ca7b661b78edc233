// The other peers, and whose state leads. Internal to the room.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/averaging.h"
#include "troika/swarm/bans.h"
#include "troika/swarm/progress.h"
#include "troika/swarm/state_transfer.h"

namespace troika::swarm {

// The other peers, as far as this one knows them.
class Others {
 public:
  // The references must outlive it. `mode` is that of this peer.
  Others(Directory& directory, ProgressTracker& tracker, Mode mode)
      : tracker_(tracker), mode_(mode), bans_(directory, tracker.own_name()) {}

  void take_change(const net::PeerChange& change);
  void take_change(const Record& record) { bans_.take_change(record); }
  // This peer has ended an averaging.
  void judge(const AveragingResult& result) { bans_.judge(result); }
  // Leaves those out of the progress that are banned now.
  void update_bans();
  bool is_banned(const std::string& peer) const { return banned_.contains(peer); }
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

  ProgressTracker& tracker_;
  const Mode mode_;
  std::set<std::string> connected_;
  std::set<std::string> last_step_;
  Bans bans_;
  std::set<std::string> banned_;
};

}  // namespace troika::swarm
