// A question from this rank to all ranks, and the answers so far. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "troika/cluster/rendezvous/answers.h"

namespace troika::cluster {

class Question {
 public:
  // `frame` is the encoded question. `own_rank` is not asked.
  Question(std::string frame, int own_rank, int world_size);

  const std::string& frame() const { return frame_; }
  // Takes answers in pack_answers() format. An empty text only confirms that the relay has
  // forwarded the question.
  void take(const std::string& packed);
  // The rank was lost or has left.
  void gone(int rank) { close(rank); }
  bool is_answered() const { return open_ranks_ == 0; }
  // Returns the answers. `relay` is this rank's relay, 0 for none; relays[r] is that of rank r.
  Answers finish(std::string own_answer, int relay, const std::vector<int>& relays);

 private:
  bool close(int rank);
  bool is_open(int rank) const { return open_[static_cast<size_t>(rank)]; }

  const std::string frame_;
  const int own_rank_;
  std::vector<std::optional<std::string>> answers_;
  std::vector<bool> open_;  // by rank: may still answer
  int open_ranks_ = 0;
  bool passed_on_ = false;
};

}  // namespace troika::cluster
