#include "troika/plan/weight_filling.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "troika/layout/schedules/inventory.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;
using layout::Inventory;
using layout::Schedule;
using layout::StageTimes;

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;

struct FilledRank {
  std::vector<Action> order;  // forward passes and input parts
  size_t next = 0;
  double clock = 0;
  double idle = 0;
  double stages = 0;
  int forwards = 0;  // done
  int inputs = 0;
  size_t weights = 0;
  std::vector<Action> pending;  // weight parts so far; the first `weights` are done
  std::vector<Action> filled;
  bool is_blocked = false;

  bool is_done() const { return next == order.size(); }
  bool has_pending() const { return weights < pending.size(); }
};

class Filling {
 public:
  Filling(const Schedule& schedule, const std::vector<StageTimes>& times, double limit,
          const MemoryModel& memory, Overrun overrun)
      : inventory_(schedule), times_(times), limit_(limit), memory_(memory), overrun_(overrun) {
    const size_t count = inventory_.at(inventory_.stages, 0);
    forward_.resize(count, kUnknown);
    input_.resize(count, kUnknown);
    for (const auto& actions : schedule.ranks) {
      auto& rank = ranks_.emplace_back();
      for (auto action : actions) {
        if (action.kind == ActionKind::backward) action.kind = ActionKind::backward_input;
        action.joined = false;
        if (action.kind == ActionKind::forward || action.kind == ActionKind::backward_input) {
          rank.order.push_back(action);
        }
      }
    }
    for (const int rank : inventory_.rank_of) ++ranks_[static_cast<size_t>(rank)].stages;
  }

  bool run() {
    while (auto* rank = earliest()) {
      if (!advance(*rank)) return false;
    }
    for (auto& rank : ranks_) {
      if (!rank.is_done()) return false;
      while (rank.has_pending()) weight(rank);
    }
    return true;
  }

  Schedule take() {
    Schedule filled;
    for (auto& rank : ranks_) filled.ranks.push_back(std::move(rank.filled));
    return filled;
  }

 private:
  const StageTimes& times_of(int stage) const { return times_[static_cast<size_t>(stage)]; }

  // Returns the rank that decides next: the first free rank whose next input time is known.
  FilledRank* earliest() {
    FilledRank* first = nullptr;
    for (auto& rank : ranks_) {
      if (rank.is_done() || rank.is_blocked) continue;
      if (!first || rank.clock < first->clock) first = &rank;
    }
    return first;
  }

  double message(int from, int to) const {
    return inventory_.rank(from) == inventory_.rank(to) ? 0 : times_of(from).message;
  }

  // Returns when a pass has its input; kUnknown if the producing pass is not placed yet.
  double ready(const Action& pass) const {
    const int s = pass.stage, m = pass.micro_batch;
    if (pass.kind == ActionKind::forward) {
      return s == 0 ? 0 : forward_[inventory_.at(s - 1, m)] + message(s - 1, s);
    }
    if (s + 1 == inventory_.stages) return forward_[inventory_.at(s, m)];
    return std::max(forward_[inventory_.at(s, m)],
                    input_[inventory_.at(s + 1, m)] + message(s + 1, s));
  }

  bool has_room(const FilledRank& rank) const {
    const auto pending = static_cast<double>(rank.pending.size() - rank.weights);
    const double kept =
        rank.forwards + 1 - static_cast<double>(rank.weights) - pending * memory_.input_part_frees;
    return kept <= limit_ * rank.stages + kTolerance;
  }

  void add(FilledRank& rank, const Action& action, double ready, double length) {
    const double begin = std::max(rank.clock, ready);
    if (!rank.filled.empty()) rank.idle += begin - rank.clock;
    worst_idle_ = std::max(worst_idle_, rank.idle);
    rank.clock = begin + length;
    rank.filled.push_back(action);
  }

  void weight(FilledRank& rank) {
    const auto& action = rank.pending[rank.weights++];
    add(rank, action, 0, times_of(action.stage).backward_weight);
  }

  void pass(FilledRank& rank, const Action& action, double ready) {
    const bool is_forward = action.kind == ActionKind::forward;
    const auto& times = times_of(action.stage);
    add(rank, action, ready, is_forward ? times.forward : times.backward_input);
    (is_forward ? forward_ : input_)[inventory_.at(action.stage, action.micro_batch)] = rank.clock;
    ++rank.next;
    if (is_forward) {
      ++rank.forwards;
    } else {
      rank.pending.push_back({ActionKind::backward_weight, action.stage, action.micro_batch});
    }
    for (auto& other : ranks_) other.is_blocked = false;
  }

  bool may_overrun(const FilledRank& rank, double ready) const {
    if (overrun_ != Overrun::balanced) return overrun_ == Overrun::always;
    return ready - rank.clock > worst_idle_ - rank.idle + kTolerance;
  }

  // Runs the rank's next pass, or a weight part before it. Returns false if memory does not
  // suffice.
  bool advance(FilledRank& rank) {
    const auto action = rank.order[rank.next];
    if (action.kind == ActionKind::forward && !has_room(rank)) {
      if (!rank.has_pending()) return false;
      weight(rank);
      return true;
    }
    const double input = ready(action);
    if (rank.has_pending() && input > rank.clock + kTolerance) {
      const auto& next = rank.pending[rank.weights];
      const double end = rank.clock + times_of(next.stage).backward_weight;
      if (end <= input + kTolerance || may_overrun(rank, input)) {
        weight(rank);
        return true;
      }
    }
    if (input == kUnknown) {
      rank.is_blocked = true;
    } else {
      pass(rank, action, input);
    }
    return true;
  }

  const Inventory inventory_;
  const std::vector<StageTimes>& times_;
  const double limit_;
  const MemoryModel memory_;
  const Overrun overrun_;
  std::vector<FilledRank> ranks_;
  double worst_idle_ = 0;  // maximum over ranks
  // Ends of forward passes and of input parts.
  std::vector<double> forward_;
  std::vector<double> input_;
};

}  // namespace

std::optional<Schedule> fill_weights(const Schedule& schedule, const std::vector<StageTimes>& times,
                                     double limit, const MemoryModel& memory, Overrun overrun) {
  Filling filling(schedule, times, limit, memory, overrun);
  if (!filling.run()) return std::nullopt;
  return filling.take();
}

}  // namespace troika::plan
