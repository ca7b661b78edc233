// The ranks as rank 0's server reaches them: over connections of their own, or through relays. For
// a single thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/peer.h"

namespace troika::cluster {

class Members {
 public:
  explicit Members(int world_size) : members_(static_cast<size_t>(world_size)) {}

  // `way` leads to the rank; through a relay if way.relays. Also for one that comes back.
  void enter(int rank, Peer& way);
  // `rank` is one of this world.
  bool is_there(int rank) const { return of(rank).state == State::there; }
  bool goes_through(int rank, const Peer& way) const { return of(rank).way == &way; }
  // Whether it is there, and a relay leads to it or led.
  bool can_come_back(int rank) const;
  // From then on it is there no more, but may still be sent to.
  void leave(int rank);
  // Its end; whether it was there.
  bool remove(int rank);
  // How many are there beside rank 0.
  int others() const { return others_; }
  std::vector<int> all_there() const;

  // A rank that cannot be reached gets nothing.
  void send(int rank, const Frame& frame) const;
  void send(const std::vector<int>& ranks, std::string_view frames) const;
  void refuse(int rank, const Refusal& why) const;
  // Ends its connection.
  void end(int rank, const std::string& why) const;

  // The connection `way` has ended: the ranks that are there and were reached through it. They can
  // come back until some seconds have passed.
  std::vector<int> cut_off(const Peer& way);
  // When the first of those has not come back; nothing: all have.
  std::optional<Deadline> deadline() const;
  std::vector<int> overdue() const;
  // Who relays for whom, as in a welcome.
  std::string relays() const;

 private:
  enum class State { absent, there, left };
  struct Member {
    State state = State::absent;
    Peer* way = nullptr;
    std::optional<Deadline> back_until = {};
  };

  const Member& of(int rank) const { return members_[static_cast<size_t>(rank)]; }
  Member& of(int rank) { return members_[static_cast<size_t>(rank)]; }

  std::vector<Member> members_;  // by rank
  int others_ = 0;
};

}  // namespace troika::cluster
