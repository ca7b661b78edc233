// How peers that want to average form groups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/adaptive_timeout.h"
#include "troika/swarm/alive.h"
#include "troika/swarm/directory.h"

namespace troika::swarm {

inline constexpr net::Channel kMatchmaking = 0x5351'0002;
// The kind of the records of peers that seek a group.
inline constexpr const char* kSeeking = "seeking";
// Whether the body of such a record is valid (RecordRules::kinds).
bool is_seeking(const Record& record);

// A peer's place among those that seek: the least one leads. Peers keep it while they seek.
using SeekingPlace = std::pair<WallTime, std::string>;  // deadline, name

// Why a peer does not lead another one.
enum class Refusal : uint8_t {
  not_seeking,    // it seeks no group
  not_admitted,   // it does not know the asker as a peer of the run
  bad_group_key,  // it seeks another group
  bad_schema,     // its vectors have another form
  bad_place,      // its place is not before that of the asker
  not_a_leader,   // it is a client, or has a leader itself, which it suggests
  group_is_full,
  group_disbanded,  // it has found a leader itself, which it suggests
  no_answer,        // in time, or it could not be reached
  too_large,        // it tells more about itself than a member may
};
const char* describe(Refusal refusal);

struct GroupMember {
  std::string name;
  std::string gathered;
};

// The group that a peer looks for.
struct Search {
  std::string key = {};       // groups have members of one key
  std::string schema = {};    // digest of the form of the vectors
  WallTime deadline{};        // when this peer, if it leads, begins with those that it has
  bool is_client = false;     // others cannot connect to it: it does not lead
  std::string gathered = {};  // tells the group something about this peer; at most 1 KiB of JSON
  size_t least_size = 2;
  size_t target_size = SIZE_MAX;  // a group begins with so many members at once
  // Whether a leader begins with these members, of which it is one, before the deadline. Empty: it
  // does not.
  std::function<bool(const std::vector<GroupMember>& members)> is_complete = {};
  // Whether this peer leads another one, or is led by it. Empty: any.
  std::function<bool(const std::string& peer)> admits = {};
};

struct Match {
  uint64_t id = 0;
  std::vector<GroupMember> members;  // by name; at least this peer
};

// Each seeker publishes a record, and asks the seeker with the least (deadline, name) before its
// own to lead it; clients, which do not lead, ask any seeker. So there are no circles, and in time
// one of them has all the others. A seeker that has found a leader disbands those that it led
// itself, and suggests its leader to them. Seekers whose leader is lost or refuses them ask the
// next one, from the same place.
//
// Construct, call and destroy it under Endpoint's rules for callbacks.
class Matchmaking {
 public:
  // Called once, not from within seek(); null: there was no group by the deadline.
  using Done = std::function<void(const std::optional<Match>&)>;

  // The references must outlive it.
  Matchmaking(net::Endpoint& endpoint, Directory& directory);
  ~Matchmaking();
  Matchmaking(const Matchmaking&) = delete;
  Matchmaking& operator=(const Matchmaking&) = delete;

  // To be called for each change that the endpoint's listener gets, and of the directory.
  void take_change(const net::PeerChange& change);
  void reconsider();

  // Begins to seek; ends a search before without its `done`.
  void seek(Search search, Done done);
  // Ends the search without its `done`; the peers are told.
  void stop();
  bool is_seeking() const { return done_ != nullptr; }

 private:
  struct Message;
  struct Follower {
    uint64_t attempt = 0;  // of asking, which answers repeat
    std::string gathered;
  };

  void take(const std::string& peer, const std::string& text);
  void take_join(const std::string& peer, const Message& join);
  void take_refusal(const std::string& peer, Refusal refusal, const std::string& suggested);
  void take_begin(const std::string& peer, const Message& begin);
  std::optional<Refusal> fault_of(const std::string& peer, const Message& join) const;
  SeekingPlace place() const;
  void ask_next();
  void begin_if_complete();
  std::vector<GroupMember> members() const;
  void begin();
  void tick();
  void disband(const std::string& leader);
  void leave_leader();
  Done finish();
  void end(const std::optional<Match>& match);
  void send(const std::string& peer, const Message& message, net::Completion completion = {});

  net::Endpoint& endpoint_;
  Directory& directory_;
  Search search_;
  Done done_;
  std::string leader_;            // asked, or accepted this peer
  bool is_accepted_ = false;      // by the leader
  net::Duration leader_until_{};  // when it is given up
  uint64_t attempt_ = 0;          // of asking; answers to earlier ones are ignored
  net::Duration asked_{};
  std::set<std::string> connected_;  // only these are asked
  std::map<std::string, Follower> followers_;
  std::map<std::string, net::Duration> avoided_;  // refused this peer; until when
  std::string suggested_;
  AdaptiveTimeout answers_;
  Alive alive_;
};

}  // namespace troika::swarm
