// The ranks that have arrived at a rendezvous, and the reasons to refuse one: the rules of
// gathering, without sockets.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

// Formats milliseconds: 30000 -> "30 s", 300 -> "0.3 s".
std::string show_span(int64_t milliseconds);

class Roster {
 public:
  // `place` is where rank 0 listens, for error messages.
  Roster(int world_size, std::string run_id, std::string place);

  struct Verdict {
    Refusal refusal;
    bool for_all = false;  // the run cannot start; otherwise only the new rank is refused
  };
  // Returns why a rank must be refused, or nullopt.
  std::optional<Verdict> objection(const Hello& hello) const;
  // Adds a rank for which objection() returned nullopt. `now` is on the clock of due().
  void enter(const Hello& hello, net::Duration now);
  bool complete() const { return arrived_.size() == static_cast<size_t>(world_size_); }
  // Returns e.g. "process 17 on node3".
  std::string who(int rank) const;

  int world_size() const { return world_size_; }

  // The first deadline of the arrived ranks; none before any has arrived.
  std::optional<net::Duration> due() const { return due_; }
  // The error for missing ranks. `note` is appended to its hint.
  Refusal late(const std::string& note) const;
  // The error for a rank that was lost before all had arrived.
  Refusal gone(int rank, const std::string& reason) const;

 private:
  int world_size_;
  std::string run_id_;
  std::string place_;
  std::map<int, Hello> arrived_;
  std::optional<net::Duration> due_;
  int64_t patience_ms_ = 0;
};

}  // namespace troika::cluster
