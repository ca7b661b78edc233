#include "troika/cluster/rendezvous/question.h"

#include <utility>

#include "troika/cluster/rendezvous/inquiries.h"

namespace troika::cluster {

Question::Question(std::string frame, int own_rank, int world_size)
    : frame_(std::move(frame)),
      own_rank_(own_rank),
      answers_(static_cast<size_t>(world_size)),
      open_(static_cast<size_t>(world_size), true),
      open_ranks_(world_size) {
  close(own_rank);
}

bool Question::close(int rank) {
  if (!is_open(rank)) return false;
  open_[static_cast<size_t>(rank)] = false;
  --open_ranks_;
  return true;
}

void Question::take(const std::string& packed) {
  passed_on_ = true;
  unpack_answers(packed, static_cast<int>(answers_.size()),
                 [this](int rank, const std::string& text) {
                   if (close(rank)) answers_[static_cast<size_t>(rank)] = text;
                 });
}

Answers Question::finish(std::string own_answer, int relay, const std::vector<int>& relays) {
  std::vector<int> silent(answers_.size());
  for (int rank = 0; rank < static_cast<int>(silent.size()); ++rank) {
    auto& who = silent[static_cast<size_t>(rank)];
    who = rank;
    if (!is_open(rank)) continue;
    // In the order in which a question is forwarded.
    if (relay != 0 && is_open(relay) && !passed_on_) {
      who = relay;
    } else if (is_open(0)) {
      who = 0;
    } else if (const int its = relays[static_cast<size_t>(rank)]; is_open(its)) {
      who = its;
    }
  }
  answers_[static_cast<size_t>(own_rank_)] = std::move(own_answer);
  return {std::move(answers_), std::move(silent)};
}

}  // namespace troika::cluster
