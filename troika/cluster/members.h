// The ranks as rank 0's server reaches them: over connections of their own, or through relays. For
// a single thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/cluster/service.h"

namespace troika::cluster {

class Members {
 public:
  using Peer = Service::Peer;

  // `service` knows the peers that lead to ranks, and must outlive it.
  Members(Service& service, int world_size)
      : service_(service), members_(static_cast<size_t>(world_size)) {}

  // `way` leads to the rank: it is the rank's own, or a relay's. Also for one that comes back.
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
  void send(const std::vector<int>& ranks, const std::string& frames) const;
  // Ends its connection when what was sent has arrived; a relay's own goes on for its ranks.
  void end(int rank) const;

  // The connection `way` has ended: the ranks that are there and were reached through it. They can
  // come back until some seconds have passed.
  std::vector<int> cut_off(const Peer& way, net::Duration now);
  // When the first of those has not come back; nothing: all have.
  std::optional<net::Duration> due() const;
  std::vector<int> overdue(net::Duration now) const;
  // Who relays for whom, as in a welcome.
  std::string relays() const;

 private:
  enum class State { absent, there, left };
  struct Member {
    State state = State::absent;
    Peer* way = nullptr;
    std::optional<net::Duration> back_until = {};
  };

  const Member& of(int rank) const { return members_[static_cast<size_t>(rank)]; }
  Member& of(int rank) { return members_[static_cast<size_t>(rank)]; }

  static bool goes_through_relay(int rank, const Peer& way) {
    return way.relays && way.rank != rank;
  }

  Service& service_;
  std::vector<Member> members_;  // by rank
  int others_ = 0;
};

}  // namespace troika::cluster
