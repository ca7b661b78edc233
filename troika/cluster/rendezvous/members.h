// How rank 0's server reaches the ranks: over their own connections or through relays. Not
// thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/cluster/rendezvous/service.h"

namespace troika::cluster {

class Members {
 public:
  using Peer = Service::Peer;

  // `service` manages the peers that lead to ranks, and must outlive this object.
  Members(Service& service, int world_size)
      : service_(service), members_(static_cast<size_t>(world_size)) {}

  // Adds a rank, or a rank that reconnects. `way` is the peer that leads to it: the rank itself or
  // its relay.
  void enter(int rank, Peer& way);
  // `rank` must be below the world size.
  bool is_there(int rank) const { return of(rank).state == State::there; }
  bool goes_through(int rank, const Peer& way) const { return of(rank).way == &way; }
  // Whether the rank is present and is, or was, reached through a relay.
  bool can_come_back(int rank) const;
  // The rank is no longer present, but can still be sent to.
  void leave(int rank);
  // Removes the rank. Returns whether it was present.
  bool remove(int rank);
  // The number of ranks present, without rank 0.
  int others() const { return others_; }
  std::vector<int> all_there() const;

  // Sends frames; a rank that cannot be reached gets nothing.
  void send(int rank, const Frame& frame) const;
  void send(const std::vector<int>& ranks, const std::string& frames) const;
  // Ends the rank's connection after pending data has arrived. A relay's own connection stays open
  // for its other ranks.
  void end(int rank) const;

  // The connection `way` has ended. Returns the present ranks that were reached through it. They
  // have some seconds to reconnect.
  std::vector<int> cut_off(const Peer& way, net::Duration now);
  // When the first of these ranks is overdue; none if all have reconnected.
  std::optional<net::Duration> due() const;
  std::vector<int> overdue(net::Duration now) const;
  // Returns which rank relays for which ranks, in the format of a welcome.
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
