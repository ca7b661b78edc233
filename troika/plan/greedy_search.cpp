#include "troika/plan/greedy_search.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace troika::plan {

using layout::Action;
using layout::ActionKind;
using layout::Schedule;

namespace {

constexpr double kLater = std::numeric_limits<double>::infinity();
constexpr double kRoom = 1e-9;

struct GreedyRank {
  double clock = 0;
  std::vector<double> forward_ends;  // by micro-batch
  std::vector<double> input_ends;
  int weights = 0;
  std::vector<Action> actions;

  int forwards() const { return static_cast<int>(forward_ends.size()); }
  int inputs() const { return static_cast<int>(input_ends.size()); }
};

class GreedySearch {
 public:
  explicit GreedySearch(const SearchedPipeline& pipeline)
      : pipeline_(pipeline), ranks_(static_cast<size_t>(pipeline.ranks)) {}

  // Runs passes in the order of their begin times.
  bool run() {
    const int all = 3 * pipeline_.ranks * pipeline_.micro_batches;
    for (int done = 0; done < all; ++done) {
      size_t first = 0;
      Choice best;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        const auto choice = choose(r);
        if (choice.begin < best.begin) {
          best = choice;
          first = r;
        }
      }
      if (best.begin == kLater) return false;
      take(first, best);
    }
    return true;
  }

  Schedule order() {
    Schedule order;
    for (auto& rank : ranks_) order.ranks.push_back(std::move(rank.actions));
    return order;
  }

 private:
  struct Choice {
    ActionKind kind = ActionKind::forward;
    double begin = kLater;
  };

  bool has_room(const GreedyRank& rank) const {
    const double kept = rank.forwards() + 1 - rank.weights -
                        (rank.inputs() - rank.weights) * pipeline_.memory.input_part_frees;
    return kept <= pipeline_.limit + kRoom;
  }

  double forward_ready(size_t r) const {
    const auto& rank = ranks_[r];
    const int m = rank.forwards();
    if (m == pipeline_.micro_batches || !has_room(rank)) return kLater;
    if (r == 0) return 0;
    const auto& before = ranks_[r - 1];
    if (m >= before.forwards()) return kLater;
    return before.forward_ends[static_cast<size_t>(m)] + pipeline_.times[r - 1].message;
  }

  double input_ready(size_t r) const {
    const auto& rank = ranks_[r];
    const int m = rank.inputs();
    if (m >= rank.forwards()) return kLater;
    if (r + 1 == ranks_.size()) return rank.forward_ends[static_cast<size_t>(m)];
    const auto& next = ranks_[r + 1];
    if (m >= next.inputs()) return kLater;
    return next.input_ends[static_cast<size_t>(m)] + pipeline_.times[r + 1].message;
  }

  // Returns the rank's next action, assuming that no other rank acts before.
  Choice choose(size_t r) const {
    const auto& rank = ranks_[r];
    const double forward = forward_ready(r), input = input_ready(r);
    const double weight = rank.inputs() > rank.weights ? rank.clock : kLater;
    const double begin = std::max(rank.clock, std::min({forward, input, weight}));
    if (begin == kLater) return {};
    if (input <= begin) return {ActionKind::backward_input, begin};
    if (forward <= begin) return {ActionKind::forward, begin};
    return {ActionKind::backward_weight, begin};
  }

  void take(size_t r, const Choice& choice) {
    auto& rank = ranks_[r];
    const auto& times = pipeline_.times[r];
    int micro_batch = 0;
    if (choice.kind == ActionKind::forward) {
      micro_batch = rank.forwards();
      rank.clock = choice.begin + times.forward;
      rank.forward_ends.push_back(rank.clock);
    } else if (choice.kind == ActionKind::backward_input) {
      micro_batch = rank.inputs();
      rank.clock = choice.begin + times.backward_input;
      rank.input_ends.push_back(rank.clock);
    } else {
      micro_batch = rank.weights++;
      rank.clock = choice.begin + times.backward_weight;
    }
    rank.actions.push_back({choice.kind, static_cast<int>(r), micro_batch});
  }

  const SearchedPipeline& pipeline_;
  std::vector<GreedyRank> ranks_;
};

}  // namespace

std::optional<Schedule> greedy_passes(const SearchedPipeline& pipeline) {
  GreedySearch search(pipeline);
  if (!search.run()) return std::nullopt;
  return search.order();
}

}  // namespace troika::plan
