#include "troika/layout/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "troika/base/text.h"
#include "troika/layout/refuse.h"

namespace troika::layout {

namespace {

using Kind = ActionKind;

constexpr std::array<std::string_view, 11> kWords{
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "GATHER", "REDUCE", "STEP"};

bool has_micro_batch(Kind kind) {
  return kind < Kind::gather;
}

std::string text_of(const Action& action) {
  const auto word = kWords[static_cast<size_t>(action.kind)];
  return has_micro_batch(action.kind)
             ? fmt::format("{}{}{}", action.stage, word, action.micro_batch)
             : fmt::format("{}{}", action.stage, word);
}

std::optional<Action> parse_action(std::string_view word) {
  constexpr int64_t kMost = 1'000'000;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto begin = std::ranges::find_if_not(word, is_digit);
  auto end = word.end();
  while (end != begin && is_digit(end[-1])) --end;
  const auto kind = std::ranges::find(kWords, std::string_view(begin, end));
  const auto stage = parse_int(std::string_view(word.begin(), begin));
  const auto micro_batch = parse_int(std::string_view(end, word.end()));
  if (kind == kWords.end() || !stage || *stage > kMost) return std::nullopt;
  Action action{static_cast<Kind>(kind - kWords.begin()), static_cast<int>(*stage)};
  if (has_micro_batch(action.kind) != (end != word.end())) return std::nullopt;
  if (!has_micro_batch(action.kind)) return action;
  if (!micro_batch || *micro_batch > kMost) return std::nullopt;
  action.micro_batch = static_cast<int>(*micro_batch);
  return action;
}

// Runs a schedule in which a send ends when its receive begins.
class Rehearsal {
 public:
  explicit Rehearsal(const Schedule& schedule) : ranks_(schedule.ranks), next_(ranks_.size(), 0) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const auto& action : ranks_[r]) place(action, r);
    }
    require_complete();
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        while (advance(r)) moved = true;
      }
    }
    std::vector<std::string> waiting;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (const auto* action = current(r)) {
        waiting.push_back(fmt::format("rank {} at {}", r, text_of(*action)));
      }
    }
    if (waiting.empty()) return;
    refuse("a schedule stands still", fmt::format("{}", fmt::join(waiting, ", ")),
           "a receive for each send, in one order on both ranks");
  }

 private:
  using Key = std::tuple<Kind, int, int>;
  static Key key(const Action& action) { return {action.kind, action.stage, action.micro_batch}; }

  void place(const Action& action, size_t rank) {
    const auto [at, is_new] = rank_of_.try_emplace(action.stage, rank);
    if (at->second != rank) {
      refuse(fmt::format("stage {} of a schedule", action.stage),
             fmt::format("actions on rank {} and rank {}", at->second, rank), "one rank");
    }
    if (!actions_.insert(key(action)).second && has_micro_batch(action.kind)) {
      refuse(fmt::format("rank {} of a schedule", rank), text_of(action) + " twice", "once");
    }
    if (action.kind == Kind::forward) micro_batches_.insert(action.micro_batch);
    if (action.kind == Kind::backward || action.kind == Kind::backward_input) trains_ = true;
  }

  bool has(Kind kind, int stage, int micro_batch) const {
    return actions_.contains({kind, stage, micro_batch});
  }
  bool is_done(Kind kind, int stage, int micro_batch) const {
    return done_.contains({kind, stage, micro_batch});
  }

  void require_complete() const {
    for (int stage = 0; stage < static_cast<int>(rank_of_.size()); ++stage) {
      if (!rank_of_.contains(stage)) {
        refuse("stages of a schedule", fmt::format("none of number {}", stage),
               "consecutive numbers from 0 on");
      }
      for (const int micro_batch : micro_batches_) {
        const auto where =
            fmt::format("stage {}, micro-batch {} of a schedule", stage, micro_batch);
        if (!has(Kind::forward, stage, micro_batch)) refuse(where, "no F", "one");
        if (!trains_) continue;
        const bool whole = has(Kind::backward, stage, micro_batch);
        const bool input = has(Kind::backward_input, stage, micro_batch);
        const bool weight = has(Kind::backward_weight, stage, micro_batch);
        if (whole != input && input == weight) continue;
        refuse(where, fmt::format("{} of B, {} of I, {} of W", int{whole}, int{input}, int{weight}),
               "B, or I and W");
      }
    }
  }

  const Action* current(size_t rank) const {
    return next_[rank] < ranks_[rank].size() ? &ranks_[rank][next_[rank]] : nullptr;
  }

  // Whether `made` of another stage, or the receive of it, has ended.
  bool has_input(Kind made, int from, Kind receive, const Action& action) const {
    const int m = action.micro_batch;
    if (rank_of_.at(from) != rank_of_.at(action.stage)) return is_done(receive, action.stage, m);
    return is_done(made, from, m) ||
           (made == Kind::backward && is_done(Kind::backward_input, from, m));
  }

  // Whether all that the action needs has ended, other than the rank's actions before it.
  bool can_begin(const Action& action) const {
    const int s = action.stage, m = action.micro_batch;
    switch (action.kind) {
      case Kind::forward:
        return s == 0 || has_input(Kind::forward, s - 1, Kind::receive_activation, action);
      case Kind::backward:
      case Kind::backward_input:
        return is_done(Kind::forward, s, m) &&
               (!rank_of_.contains(s + 1) ||
                has_input(Kind::backward, s + 1, Kind::receive_gradient, action));
      case Kind::backward_weight:
        return is_done(Kind::backward_input, s, m);
      case Kind::send_activation:
        return is_done(Kind::forward, s, m);
      case Kind::send_gradient:
        return is_done(Kind::backward, s, m) || is_done(Kind::backward_input, s, m);
      case Kind::reduce:
      case Kind::step:
        return std::ranges::all_of(micro_batches_, [&](int one) {
          return is_done(Kind::backward, s, one) || is_done(Kind::backward_weight, s, one);
        });
      default:
        return true;
    }
  }

  // The other end of a message.
  static std::optional<Action> partner(const Action& action) {
    const int s = action.stage, m = action.micro_batch;
    switch (action.kind) {
      case Kind::send_activation:
        return Action{Kind::receive_activation, s + 1, m};
      case Kind::receive_activation:
        return Action{Kind::send_activation, s - 1, m};
      case Kind::send_gradient:
        return Action{Kind::receive_gradient, s - 1, m};
      case Kind::receive_gradient:
        return Action{Kind::send_gradient, s + 1, m};
      default:
        return std::nullopt;
    }
  }

  void finish(size_t rank) {
    done_.insert(key(*current(rank)));
    ++next_[rank];
  }

  bool advance(size_t rank) {
    const auto* action = current(rank);
    if (!action || !can_begin(*action)) return false;
    const auto other = partner(*action);
    if (other) {
      const auto peer = rank_of_.find(other->stage);
      if (peer == rank_of_.end() || peer->second == rank) {
        refuse(fmt::format("rank {} of a schedule", rank), text_of(*action),
               "messages between neighbouring stages on two ranks");
      }
      const auto* theirs = current(peer->second);
      if (!theirs || *theirs != *other || !can_begin(*theirs)) return false;
      finish(peer->second);
    }
    finish(rank);
    return true;
  }

  const std::vector<std::vector<Action>>& ranks_;
  std::vector<size_t> next_;       // by rank
  std::map<int, size_t> rank_of_;  // of stages
  std::set<int> micro_batches_;
  bool trains_ = false;
  std::set<Key> actions_;
  std::set<Key> done_;
};

}  // namespace

Schedule Schedule::parse(std::string_view text) {
  Schedule schedule;
  for (const auto& line : split(text, '\n')) {
    if (trim(line).empty()) continue;
    auto& actions = schedule.ranks.emplace_back();
    for (const auto& word : split(trim(line), ' ')) {
      if (word.empty()) continue;
      const auto action = parse_action(word);
      if (!action) {
        refuse(fmt::format("rank {} of a schedule", schedule.ranks.size() - 1), word,
               fmt::format("STAGE KIND MICRO-BATCH as 0F2, with one of the kinds {}",
                           fmt::join(kWords, ", ")));
      }
      actions.push_back(*action);
    }
  }
  return schedule;
}

std::string Schedule::text() const {
  std::string text;
  for (const auto& actions : ranks) {
    std::vector<std::string> words;
    for (const auto& action : actions) words.push_back(text_of(action));
    text += fmt::format("{}\n", fmt::join(words, " "));
  }
  return text;
}

void Schedule::verify() const {
  Rehearsal(*this).run();
}

Schedule one_stage(int micro_batches) {
  Schedule schedule;
  auto& actions = schedule.ranks.emplace_back();
  for (int m = 0; m < micro_batches; ++m) {
    actions.push_back({Kind::forward, 0, m});
    actions.push_back({Kind::backward, 0, m});
  }
  actions.push_back({Kind::reduce, 0});
  actions.push_back({Kind::step, 0});
  return schedule;
}

}  // namespace troika::layout
