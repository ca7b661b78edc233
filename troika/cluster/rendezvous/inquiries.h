// Questions of ranks to all ranks, forwarded by rank 0's server: the rules, without sockets.
//
// When N ranks ask the same question at the same time, as they do after a collective has timed out,
// forwarding each question to each rank and each answer back would take N x N frames both ways.
// Instead, the ranks are asked once for all current askers (a wave). Each asker gets the answers
// together; equal answers are sent once. No asker gets an answer given before it asked: a rank that
// asks during a wave waits for the next one.
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
#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

class Inquiries {
 public:
  using Send = std::function<void(const std::vector<int>& ranks, const Frame& frame)>;
  // `now` returns the time for all times below.
  Inquiries(Send send, std::function<net::Duration()> now)
      : send_(std::move(send)), now_(std::move(now)) {}

  // `name` identifies the question for its asker, which waits for `patience`.
  void ask(int rank, const std::string& name, const std::string& question, Milliseconds patience);
  // `wave` is the number sent with the question.
  void answer(int rank, uint64_t wave, const std::string& text);

  void arrived(int rank) { there_.insert(rank); }
  // The rank is not asked any more, and its own questions end.
  void gone(int rank);

  // When proceed() must be called next; none: not needed.
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
    net::Duration due;   // when to forward the answers received so far and start the next wave
    std::set<int> open;  // ranks that have not answered yet
    std::map<std::string, std::vector<int>> fresh = {};  // ranks by answer; not forwarded yet
  };

  net::Duration next_due() const;
  bool is_under_way(const std::string& question) const;
  void begin(const std::string& question, std::vector<Asker> askers);
  void begin_waiting(const std::string& question);
  void pass_on(Wave& wave);
  // Ends the wave if no more answers can come or no asker is left.
  void end_if_complete(uint64_t number);

  const Send send_;
  const std::function<net::Duration()> now_;
  std::set<int> there_;
  std::map<uint64_t, Wave> waves_;
  std::map<std::string, std::vector<Asker>> waiting_;  // for the next wave, by question
  uint64_t next_wave_ = 0;
};

// Encodes answers for one frame, each with the ranks that gave it.
std::string pack_answers(const std::map<std::string, std::vector<int>>& answers);
// Calls `take` for each rank. Throws Error(cluster, failure) unless pack_answers() made the text,
// with ranks below `world_size`.
void unpack_answers(const std::string& packed, int world_size,
                    const std::function<void(int rank, const std::string& answer)>& take);

}  // namespace troika::cluster
