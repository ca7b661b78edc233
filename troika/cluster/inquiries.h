// Questions of ranks to all ranks, as rank 0's server passes them on: the rules, without sockets.
//
// When N ranks ask the same question at the same time, as all do whose call has timed out, a relay
// of each question to each rank and of each answer back would take N x N frames both ways. Here the
// ranks are asked once for all who ask at that time (a wave), and each asker gets the answers
// together, equal ones once. Nobody gets an answer that was given before it asked: who comes while
// a wave is under way waits for the next.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/wire.h"

namespace troika::cluster {

class Inquiries {
 public:
  using Send = std::function<void(const std::vector<int>& ranks, const Frame& frame)>;
  // `now` is the clock of the times below.
  Inquiries(Send send, std::function<net::Duration()> now)
      : send_(std::move(send)), now_(std::move(now)) {}

  // `name` is the asker's own for it; it waits for `patience`.
  void ask(int rank, const std::string& name, const std::string& question, Milliseconds patience);
  // `wave` is the number that came with the question.
  void answer(int rank, uint64_t wave, const std::string& text);

  void arrived(int rank) { there_.insert(rank); }
  // Is asked no more, and asks no more.
  void gone(int rank);

  // When to call proceed(); nothing: never.
  std::optional<net::Duration> due() const;
  void proceed();

 private:
  struct Asker {
    int rank;
    std::string name;
    net::Duration until;
  };
  struct Wave {
    std::string question;
    std::vector<Asker> askers;
    net::Duration due;   // to pass on what has come, and to begin the next with this question
    std::set<int> open;  // that have yet to answer
    std::map<std::string, std::vector<int>> fresh = {};  // answers not passed on yet, of whom
  };

  net::Duration next_due() const;
  bool is_under_way(const std::string& question) const;
  void begin(const std::string& question, std::vector<Asker> askers);
  void begin_waiting(const std::string& question);
  void pass_on(Wave& wave);
  // Ends it when nothing more can come of it.
  void end_if_complete(uint64_t number);

  const Send send_;
  const std::function<net::Duration()> now_;
  std::set<int> there_;
  std::map<uint64_t, Wave> waves_;
  std::map<std::string, std::vector<Asker>> waiting_;  // for the next wave, by question
  uint64_t next_wave_ = 0;
};

// Answers as they stand in one frame: each with the ranks that gave it.
std::string pack_answers(const std::map<std::string, std::vector<int>>& answers);
// Calls `take` for each rank. Throws Error(cluster, failure) for what pack_answers() did not make
// of ranks below `world_size`.
void unpack_answers(const std::string& packed, int world_size,
                    const std::function<void(int rank, const std::string& answer)>& take);

}  // namespace troika::cluster
