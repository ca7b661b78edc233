#include "troika/plan/pass_search.h"

#include <algorithm>
#include <utility>

namespace troika::plan {

using layout::Action;
using layout::ActionKind;
using layout::Schedule;

namespace {

constexpr double kRounding = 1e-9;

// The state of one rank so far.
struct SearchedRank {
  double clock = 0;  // end of its last pass
  double idle = 0;   // between its passes
  int forwards = 0;
  int inputs = 0;
  int weights = 0;
  std::vector<double> forward_ends;  // by micro-batch
  std::vector<double> input_ends;
  std::vector<Action> actions;

  int pending() const { return inputs - weights; }
};

// Rounds of at most one forward pass and one input part per rank, with weight parts in the waits
// between them.
class PassSearch {
 public:
  PassSearch(const SearchedPipeline& pipeline, const SearchSwitches& switches)
      : pipeline_(pipeline), switches_(switches), ranks_(static_cast<size_t>(pipeline.ranks)) {}

  bool run() {
    if (!warm_up()) return false;
    for (int round = 1; round < pipeline_.micro_batches; ++round) {
      const auto wanted = wanted_forwards();
      for (size_t j = 0; j < ranks_.size(); ++j) {
        if (wanted[j] && !forward(j)) return false;
      }
      if (!inputs()) return false;
    }
    for (size_t j = 0; j < ranks_.size(); ++j) {
      while (ranks_[j].pending() > 0) weight(j);
    }
    return true;
  }

  Schedule order() {
    Schedule order;
    for (auto& rank : ranks_) order.ranks.push_back(std::move(rank.actions));
    return order;
  }

 private:
  const layout::StageTimes& times(size_t j) const { return pipeline_.times[j]; }
  bool has_forwards(size_t j) const { return ranks_[j].forwards < pipeline_.micro_batches; }

  double memory(size_t j) const {
    const auto& rank = ranks_[j];
    return rank.forwards - rank.weights - rank.pending() * pipeline_.memory.input_part_frees;
  }

  // Returns the number of weight parts that must run before a forward pass; -1 if the pending ones
  // free too little memory.
  int needed_weights(size_t j) const {
    const double each = 1 - pipeline_.memory.input_part_frees;
    double now = memory(j);
    for (int needed = 0; needed <= ranks_[j].pending(); ++needed) {
      if (now + 1 <= pipeline_.limit + kRounding) return needed;
      now -= each;
    }
    return -1;
  }

  void add(size_t j, ActionKind kind, int micro_batch, double ready, double length) {
    auto& rank = ranks_[j];
    const double begin = std::max(rank.clock, ready);
    if (!rank.actions.empty()) rank.idle += begin - rank.clock;
    worst_idle_ = std::max(worst_idle_, rank.idle);
    rank.clock = begin + length;
    rank.actions.push_back({kind, static_cast<int>(j), micro_batch});
  }

  void weight(size_t j) {
    add(j, ActionKind::backward_weight, ranks_[j].weights++, 0, times(j).backward_weight);
  }

  // Runs weight parts before a pass whose input arrives at `ready`.
  void fill(size_t j, double ready) {
    auto& rank = ranks_[j];
    const double length = times(j).backward_weight;
    while (rank.pending() > 0 && rank.clock + length <= ready + kRounding) weight(j);
    const double wait = ready - rank.clock;
    if (rank.pending() == 0 || wait <= kRounding) return;
    if (switches_.fills_every_wait || wait > worst_idle_ - rank.idle + kRounding) weight(j);
  }

  bool forward(size_t j) {
    auto& rank = ranks_[j];
    const int needed = needed_weights(j);
    if (needed < 0) return false;
    for (int i = 0; i < needed; ++i) weight(j);
    const int m = rank.forwards;
    double ready = 0;
    if (j > 0) {
      const auto& ends = ranks_[j - 1].forward_ends;
      if (static_cast<size_t>(m) >= ends.size()) return false;
      ready = ends[static_cast<size_t>(m)] + times(j - 1).message;
    }
    fill(j, ready);
    add(j, ActionKind::forward, m, ready, times(j).forward);
    ++rank.forwards;
    rank.forward_ends.push_back(rank.clock);
    return true;
  }

  // Runs the next input part of every rank, from the last rank to the first.
  bool inputs() {
    for (size_t j = ranks_.size(); j-- > 0;) {
      auto& rank = ranks_[j];
      const int m = rank.inputs;
      if (m >= rank.forwards) return false;
      double ready = 0;
      if (j + 1 < ranks_.size()) {
        ready = ranks_[j + 1].input_ends[static_cast<size_t>(m)] + times(j + 1).message;
      }
      fill(j, ready);
      add(j, ActionKind::backward_input, m, ready, times(j).backward_input);
      ++rank.inputs;
      rank.input_ends.push_back(rank.clock);
    }
    return true;
  }

  // Runs the forward pass of the first micro-batch, then more forward passes within memory and the
  // time until the first gradient, fewer on each rank than on the previous one, then the backward
  // pass of that gradient.
  bool warm_up() {
    for (size_t j = 0; j < ranks_.size(); ++j) {
      if (!forward(j)) return false;
    }
    std::vector<int> more(ranks_.size(), 0);
    double gradient = ranks_.back().clock;  // its arrival on the rank
    for (size_t j = ranks_.size(); j-- > 0;) {
      double clock = ranks_[j].clock;
      const auto fits = [&] {
        const double end = clock + times(j).forward;
        return switches_.fills_beyond_gradient ? clock < gradient - kRounding
                                               : end <= gradient + kRounding;
      };
      while (2 + more[j] <= pipeline_.limit + kRounding && more[j] + 1 < pipeline_.micro_batches &&
             fits()) {
        ++more[j];
        clock += times(j).forward;
      }
      gradient = std::max(gradient, clock) + times(j).backward_input + times(j).message;
    }
    for (size_t j = 0; j < ranks_.size(); ++j) {
      if (j > 0) more[j] = std::max(0, std::min(more[j], more[j - 1] - 1));
      for (int i = 0; i < more[j]; ++i) {
        if (!forward(j)) return false;
      }
    }
    return inputs();
  }

  // Returns whether each rank runs a forward pass in this round. A rank skips if the next rank
  // skips.
  std::vector<bool> wanted_forwards() const {
    std::vector<bool> wanted(ranks_.size(), false);
    for (size_t j = ranks_.size(); j-- > 0;) {
      const bool is_last = j + 1 == ranks_.size();
      wanted[j] = has_forwards(j) && (is_last || !may_skip(j, wanted[j + 1]));
    }
    return wanted;
  }

  bool may_skip(size_t j, bool next_is_wanted) const {
    const auto &rank = ranks_[j], &next = ranks_[j + 1];
    const int ahead = rank.forwards - next.forwards;
    if (!next_is_wanted && has_forwards(j + 1)) return true;
    const int needed = needed_weights(j);
    if (needed < 0) return ahead >= 1;
    if (!switches_.may_skip_forward || ahead < 2) return false;
    // The arrival of the next rank's gradient if that rank runs both passes.
    const double gradient =
        next.clock + times(j + 1).forward + times(j + 1).backward_input + times(j + 1).message;
    if (rank.clock >= gradient) return true;
    const double end = rank.clock + times(j).forward + needed * times(j).backward_weight;
    return end > gradient && gradient - rank.clock <= worst_idle_ - rank.idle;
  }

  const SearchedPipeline& pipeline_;
  const SearchSwitches switches_;
  std::vector<SearchedRank> ranks_;
  double worst_idle_ = 0;  // maximum over ranks
};

}  // namespace

std::optional<Schedule> search_passes(const SearchedPipeline& pipeline,
                                      const SearchSwitches& switches) {
  PassSearch search(pipeline, switches);
  if (!search.run()) return std::nullopt;
  return search.order();
}

}  // namespace troika::plan
