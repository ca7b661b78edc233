// A peer of a swarm: trainers that come and go, and that make steps of one large batch together
// (DeDLOC, section 3; hivemind's optimizer).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/base/random.h"
#include "troika/net/endpoint.h"
#include "troika/swarm/averaging.h"
#include "troika/swarm/gossip.h"
#include "troika/swarm/matchmaking.h"
#include "troika/swarm/others.h"
#include "troika/swarm/progress.h"
#include "troika/swarm/state_transfer.h"
#include "troika/swarm/step_groups.h"

namespace troika::swarm {

template <typename Number>
struct PeerOptions {
  // The same on all peers of a run. Peers with another schema, target_batch, packing_name,
  // least_part, aggregation or group_size do not count for this one: they are in no group with it,
  // and it follows no state of theirs.
  std::string run = {};
  std::string schema = {};            // digest of the form of the values
  int64_t target_batch = 1;           // samples of a step
  net::Packing<Number> packing = {};  // of values in averagings
  std::string packing_name = {};      // tells packings apart
  Aggregation aggregation = Aggregation::mean;
  // Groups of larger swarms are parts of it: a step takes two rounds in groups of about so many
  // peers (step_groups.h). 0: there is one group of all. Only with Aggregation::mean.
  size_t group_size = 0;

  // The trainer goes on while an average is on its way: samples that it reports then count for the
  // next epoch. Otherwise they do not count.
  bool overlaps = false;

  // The name of the authority whose tokens all peers must have (token.h); empty: there is none.
  std::string authority = {};
  std::string token = {};  // of this peer

  Mode mode = Mode::node;
  // Bytes per second of the link, each way, which decide the part that this peer reduces.
  std::optional<double> bandwidth = {};
  size_t least_part = 1024;  // numbers; peers that would reduce fewer reduce none
  // The state that the peer begins with: epoch 0, and a history that is the same on all that begin
  // with the same state.
  StateVersion version = {};
  // Before its first step, a peer looks for others for so long.
  net::Duration discovery_time = std::chrono::seconds(3);
  // A group waits for peers at most so long. Measured times make it shorter, to 2 s.
  net::Duration matchmaking_time = std::chrono::seconds(5);
  // A peer that found no group for so long makes the step alone.
  net::Duration averaging_time = std::chrono::seconds(60);
  // AveragingOptions; measured times make it shorter, to 2 s.
  net::Duration sender_timeout = std::chrono::seconds(30);
  net::Duration download_time = std::chrono::seconds(600);  // of a state, at most
  uint64_t most_state = uint64_t{1} << 36;                  // bytes of a state that is downloaded
  uint64_t seed = 0;                                        // for the choice among equal donors
  // Other records of the run (RecordRules::kinds), for directory().
  std::map<std::string, std::function<bool(const Record&)>> kinds = {};
  // Reads the messages with records; peers in one process may share what they read.
  GossipReader reader = own_reader();
};

// A step that the swarm made.
struct SwarmStep {
  int64_t epoch = 0;                      // that it ended
  std::vector<std::string> members = {};  // of this peer's group
  AveragingResult averaging = {};
};

// Called under Endpoint's rules for callbacks; may call the peer.
template <typename Number>
struct PeerCallbacks {
  using Values = std::shared_ptr<std::vector<Number>>;

  // The swarm has the samples of the epoch: contribute() is awaited, soon or from within this call.
  // Not called for auxiliary peers.
  std::function<void(int64_t epoch)> due;
  // `values` are the averages, to be applied to the state, which is that of the next epoch then.
  // Numbers of parts that were not averaged are this peer's own.
  std::function<void(const SwarmStep& step, const Values& values)> averaged;
  // Returns the state at the beginning of Peer::epoch(), which must not depend on the peer; null:
  // it is not available now, and is asked for again.
  StateTransfer::Take state;
  // Replaces the state by another peer's. Samples since the last step are discarded.
  std::function<void(int64_t epoch, const std::string& state)> load;
};

// Puts the parts of the room together on one endpoint, whose name is the identity's, and whose
// listener for peers it sets. Peers of a run that train have connections to each other; clients
// need none to other clients.
//
// Epochs: peers report their samples. When the peers together have the target batch, each
// contributes its mean gradient with its samples as weight, and the group of all, or two rounds of
// smaller groups (PeerOptions::group_size), averages them.
// Then each makes the same step. Each state has a history: peers with the same epoch and history
// have the same state, if `averaged` is deterministic.
//
// A peer that is behind, or whose last average is not that of its group, downloads the state of a
// peer that leads. Peers with the latest epoch lead, and among them the most peers with the same
// history, whose averages were whole. So swarms that were apart become one.
//
// Construct, call and destroy it under Endpoint's rules for callbacks. All functions return at
// once.
template <typename Number>
class Peer {
 public:
  using Values = std::shared_ptr<std::vector<Number>>;

  // Connections must be made after this. The references must outlive it. Throws Error(swarm,
  // usage) if the endpoint has another name than the identity, target_batch is below 1, the
  // bandwidth is not above 0 and finite, or a peer that is not auxiliary lacks `due`, `state` or
  // `load`.
  Peer(net::Endpoint& endpoint, const Identity& identity, PeerOptions<Number> options,
       PeerCallbacks<Number> callbacks, WallClock clock = system_time);
  // Leaves the swarm: the others lose this peer if the connections end, too.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Adds processed samples.
  void report(int64_t samples);
  // A peer that is paused says so to the others. It computes and reduces nothing, and follows: when
  // `due` is called, it contributes with weight 0, or with that of samples from before the pause,
  // and gets the average. So it has the state of the others when it goes on.
  void set_paused(bool is_paused) { tracker_.set_paused(is_paused); }
  // Gives the values that `due` asked for: the mean over this peer's samples, whose number is
  // `weight`. Ignored unless that epoch is still due. The values belong to the peer until
  // `averaged` or `load` is called. Throws Error(swarm, usage) for no values or a wrong weight.
  void contribute(int64_t epoch, Values values, double weight);

  // Replaces the token.
  void use_token(const std::string& token) {
    directory_.use_token(token);
    tracker_.announce();
  }

  int64_t epoch() const { return tracker_.epoch(); }
  const std::string& history() const { return tracker_.history(); }
  // Digest of the options that must be the same on all peers of a run.
  const std::string& schema() const { return schema_; }
  bool is_discovering() const { return phase_ == Phase::discovering; }
  bool is_downloading() const { return states_.is_downloading(); }
  // Whether contribute() is awaited.
  bool is_due() const { return phase_ == Phase::due; }
  // Whether a contribution is on its way: neither averaged, nor discarded yet.
  bool is_averaging() const { return phase_ == Phase::matching || phase_ == Phase::averaging; }
  // Whether the other peers have found that a peer, maybe this one, lies (bans.h).
  bool is_banned(const std::string& peer) const { return others_.is_banned(peer); }
  bool is_connected(const std::string& peer) const { return others_.is_connected(peer); }
  SwarmProgress progress() const { return tracker_.swarm(); }
  // The peers of this schema that are alive, this one first.
  std::vector<PeerProgress> peers() const { return tracker_.peers(); }
  Directory& directory() { return directory_; }

 private:
  enum class Phase : uint8_t { discovering, training, due, matching, averaging, downloading };

  void take_change(const net::PeerChange& change);
  void tick();
  bool is_complete(const std::vector<GroupMember>& members) const;
  bool is_alone() const;
  void check_state();
  void check_due();
  void download(const StateVersion& version);
  void begin_epoch(const StateVersion& version);
  void seek();
  void take_match(const std::optional<Match>& match);
  void begin_round(const Match& match);
  void end_round(const Match& match, const AveragingResult& result);
  net::Duration round_timeout(const Match& match);
  std::string gathered(Mode mode) const;

  net::Endpoint& endpoint_;
  const PeerOptions<Number> options_;
  const std::string schema_;  // of all that must be the same on the peers of a run
  const PeerCallbacks<Number> callbacks_;
  GossipDirectory directory_;
  ProgressTracker tracker_;
  Matchmaking matchmaking_;
  Others others_;
  Averager averager_;
  StateTransfer states_;
  Random random_;
  Phase phase_ = Phase::discovering;
  struct Times {
    net::Duration phase{};                    // began
    net::Duration averaging_until{};          // then the step is made alone
    std::optional<net::Duration> apart = {};  // since when this peer's history does not lead
    AdaptiveTimeout matches, columns, rounds;
    std::set<std::string> silent = {};  // members of the last round that were too slow, or gone
  } times_;
  // That this peer contributes to.
  struct Step {
    Values values = {};
    double weight = 0;
    StepGroups groups = StepGroups();
    std::set<std::string> peers = {};  // that were known to make it
  } step_;
  Alive alive_;
};

}  // namespace troika::swarm
