// Who has arrived at a rendezvous, and why somebody may not: the rules of gathering, without
// sockets.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "troika/base/clock.h"
#include "troika/cluster/wire.h"

namespace troika::cluster {

// 30000 -> "30 s", 300 -> "0.3 s".
std::string show_span(int64_t milliseconds);

class Roster {
 public:
  // `place` is where rank 0 listens, for messages.
  Roster(int world_size, std::string run_id, std::string place);

  struct Verdict {
    Refusal refusal;
    bool for_all = false;  // the run cannot start; else only the newcomer is sent away
  };
  // Why a rank may not be entered; nothing: it may.
  std::optional<Verdict> objection(const Hello& hello) const;
  // There must be no objection() to it.
  // `now` is by the clock of due().
  void enter(const Hello& hello, net::Duration now);
  bool complete() const { return arrived_.size() == static_cast<size_t>(world_size_); }
  // "process 17 on node3".
  std::string who(int rank) const;

  int world_size() const { return world_size_; }

  // When the first of the arrived ranks will have lost its patience; nothing before any arrived.
  std::optional<net::Duration> due() const { return due_; }
  // `note` follows the hint.
  Refusal late(const std::string& note) const;
  // A rank that had arrived is gone before all were there.
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
