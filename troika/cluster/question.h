// A question that a rank has asked all ranks, and the answers that have come. For one thread at a
// time.
#pragma once

#include <string>
#include <vector>

#include "troika/cluster/answers.h"

namespace troika::cluster {

class Question {
 public:
  // `frame` asks it; `own_rank` does not answer itself.
  Question(std::string frame, int own_rank, int world_size);

  const std::string& frame() const { return frame_; }
  // Answers of pack_answers(), or none, which says that the way to rank 0 passed the question on.
  void take(const std::string& packed);
  // The rank was lost or has left.
  void gone(int rank) { close(rank); }
  bool is_answered() const { return open_ranks_ == 0; }
  // `relay` passes on for this rank, 0 for none, and relays[r] for rank r.
  Answers finish(std::string own_answer, int relay, const std::vector<int>& relays);

 private:
  bool close(int rank);
  bool is_open(int rank) const { return open_[static_cast<size_t>(rank)]; }

  const std::string frame_;
  const int own_rank_;
  std::vector<std::optional<std::string>> answers_;
  std::vector<bool> open_;  // may still answer
  int open_ranks_ = 0;
  bool passed_on_ = false;
};

}  // namespace troika::cluster
