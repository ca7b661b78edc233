#include "troika/layout/schedules/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "troika/base/error.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/waiting.h"

namespace troika::layout {

namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

class Replay {
 public:
  Replay(const Schedule& schedule, const std::vector<StageTimes>& times)
      : inventory_(schedule), times_(times), timed_(schedule.ranks.size()) {
    const auto stages = static_cast<size_t>(inventory_.stages);
    TROIKA_CHECK(times.size() == 1 || times.size() == stages,
                 "times of each stage, or of one for all");
    const size_t count = stages * static_cast<size_t>(inventory_.micro_batches);
    forward_.resize(count, kNotYet);
    backward_.resize(count, kNotYet);
    for (const auto& actions : schedule.ranks) {
      auto& passes = passes_.emplace_back();
      for (const auto& action : actions) {
        if (is_pass(action.kind)) passes.push_back(action);
      }
    }
  }

  std::vector<std::vector<TimedPass>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < passes_.size(); ++r) {
        while (advance(r)) moved = true;
      }
    }
    std::vector<Waiting> waiting;
    for (size_t r = 0; r < passes_.size(); ++r) {
      const size_t next = timed_[r].size();
      if (next < passes_[r].size()) waiting.push_back({r, passes_[r][next], need(r, next)});
    }
    if (!waiting.empty()) refuse_standstill(waiting);
    return std::move(timed_);
  }

 private:
  const StageTimes& times_of(int stage) const {
    return times_[times_.size() == 1 ? 0 : static_cast<size_t>(stage)];
  }

  double message(int from, int to) const {
    return inventory_.rank(from) == inventory_.rank(to) ? 0 : times_of(from).message;
  }

  // Returns the time at which all inputs of a pass are on its rank; kNotYet if unknown.
  double ready(const Action& pass) const {
    const int s = pass.stage, m = pass.micro_batch;
    switch (pass.kind) {
      case ActionKind::forward:
        return s == 0 ? 0 : forward_[inventory_.at(s - 1, m)] + message(s - 1, s);
      case ActionKind::backward:
      case ActionKind::backward_input: {
        const double own = forward_[inventory_.at(s, m)];
        if (s + 1 == inventory_.stages) return own;
        return std::max(own, backward_[inventory_.at(s + 1, m)] + message(s + 1, s));
      }
      default:
        return backward_[inventory_.at(s, m)];
    }
  }

  size_t group_end(size_t rank, size_t begin) const {
    size_t end = begin + 1;
    while (end < passes_[rank].size() && passes_[rank][end - 1].joined) ++end;
    return end;
  }

  // Returns the action that a pass waits for, for the error.
  std::optional<Action> need(size_t rank, size_t begin) const {
    for (size_t i = begin; i < group_end(rank, begin); ++i) {
      const auto& pass = passes_[rank][i];
      const int s = pass.stage, m = pass.micro_batch;
      if (ready(pass) < kNotYet) continue;
      if (pass.kind == ActionKind::forward) return Action{ActionKind::forward, s - 1, m};
      if (pass.kind == ActionKind::backward_weight) return Action{ActionKind::backward_input, s, m};
      if (forward_[inventory_.at(s, m)] == kNotYet) return Action{ActionKind::forward, s, m};
      return Action{ActionKind::backward, s + 1, m};
    }
    return std::nullopt;
  }

  bool advance(size_t rank) {
    auto& timed = timed_[rank];
    const auto& passes = passes_[rank];
    const size_t begin = timed.size();
    if (begin == passes.size()) return false;
    const size_t end = group_end(rank, begin);
    double start = timed.empty() ? 0 : timed.back().end;
    double length = 0;
    for (size_t i = begin; i < end; ++i) {
      start = std::max(start, ready(passes[i]));
      length += times_of(passes[i].stage).of(passes[i].kind);
    }
    if (start == kNotYet) return false;
    for (size_t i = begin; i < end; ++i) {
      const auto& pass = passes[i];
      timed.push_back({pass, start, start + length});
      if (pass.kind == ActionKind::backward_weight) continue;
      auto& ends = pass.kind == ActionKind::forward ? forward_ : backward_;
      ends[inventory_.at(pass.stage, pass.micro_batch)] = start + length;
    }
    return true;
  }

  const Inventory inventory_;
  const std::vector<StageTimes>& times_;
  std::vector<std::vector<Action>> passes_;
  std::vector<std::vector<TimedPass>> timed_;
  // The ends of F, and of B or I; kNotYet if unknown.
  std::vector<double> forward_;
  std::vector<double> backward_;
};

}  // namespace

double StageTimes::of(ActionKind pass) const {
  switch (pass) {
    case ActionKind::forward:
      return forward;
    case ActionKind::backward:
      return backward();
    case ActionKind::backward_input:
      return backward_input;
    case ActionKind::backward_weight:
      return backward_weight;
    default:
      TROIKA_CHECK(false, "a pass");
      return 0;
  }
}

std::vector<std::vector<TimedPass>> replay(const Schedule& schedule,
                                           const std::vector<StageTimes>& times) {
  return Replay(schedule, times).run();
}

std::vector<int> peak_activations(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const auto& actions : schedule.ranks) {
    int alive = 0, peak = 0;
    for (const auto& action : actions) {
      if (action.kind == ActionKind::forward) peak = std::max(peak, ++alive);
      if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) {
        --alive;
      }
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace troika::layout
