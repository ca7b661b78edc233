#include "troika/layout/schedules/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

// F, B, I, W and the four kinds of messages between neighbours.
constexpr size_t kCountedKinds = 8;

std::string of_rank(size_t rank) {
  return fmt::format("rank {} of a schedule", rank);
}

}  // namespace

Rehearsal::Rehearsal(const Schedule& schedule)
    : ranks_(schedule.ranks),
      inventory_(schedule),
      next_(ranks_.size(), 0),
      unfinished_(static_cast<size_t>(inventory_.stages), inventory_.micro_batches) {
  std::set<Skip> skips;
  for (const auto& actions : ranks_) {
    for (const auto& action : actions) {
      if (!is_message(action.kind) || action.peer < 0) continue;
      const int other = action.peer;
      skips.insert({std::min(action.stage, other), std::max(action.stage, other)});
    }
  }
  skips_.assign(skips.begin(), skips.end());
  const auto rows = kCountedKinds * static_cast<size_t>(inventory_.stages) + skips_.size() * 4;
  done_.resize(rows * static_cast<size_t>(inventory_.micro_batches));
  for (size_t r = 0; r < ranks_.size(); ++r) {
    require_groups(r);
    for (const auto& action : ranks_[r]) {
      if (is_message(action.kind)) require_message(action, r);
    }
    require_steps(r);
  }
  std::ranges::fill(done_, 0);
}

void Rehearsal::require_groups(size_t rank) const {
  const auto& actions = ranks_[rank];
  for (size_t i = 0; i < actions.size(); ++i) {
    if (!actions[i].joined) continue;
    const auto* next = i + 1 < actions.size() ? &actions[i + 1] : nullptr;
    const bool is_batch = next && is_message(actions[i].kind) && is_message(next->kind);
    const bool is_overlap = next && actions[i].kind == ActionKind::forward &&
                            next->kind == ActionKind::backward && !next->joined;
    if (is_batch || is_overlap) continue;
    refuse(of_rank(rank),
           fmt::format("{} joined to {}", describe(actions[i]), next ? describe(*next) : "nothing"),
           "a forward pass joined to a backward pass, or a message to a message");
  }
}

// Marks the message in done_, to detect repeated ones.
void Rehearsal::require_message(const Action& action, size_t rank) {
  const int peer = peer_stage(action);
  const bool is_forward =
      action.kind == ActionKind::send_activation || action.kind == ActionKind::receive_activation;
  const bool is_between_ranks =
      peer >= 0 && peer < inventory_.stages && inventory_.rank(peer) != static_cast<int>(rank);
  if (!is_between_ranks || action.micro_batch < 0 || (!is_forward && !inventory_.trains)) {
    refuse(of_rank(rank), describe(action),
           is_forward ? "messages between stages on two ranks"
                      : "messages between stages on two ranks, of a schedule that trains");
  }
  auto& seen = done_[index(action)];
  if (seen++ != 0) refuse(of_rank(rank), describe(action) + " twice", "once");
}

void Rehearsal::require_steps(size_t rank) const {
  std::map<std::pair<ActionKind, int>, int> counts;
  const Action* step = nullptr;
  for (const auto& action : ranks_[rank]) {
    if (step && action.kind != ActionKind::step) {
      refuse(of_rank(rank), fmt::format("{} after {}", describe(action), describe(*step)),
             "nothing but steps after a step");
    }
    if (action.kind == ActionKind::step) step = &action;
    if (is_pass(action.kind) || is_message(action.kind)) continue;
    if (++counts[{action.kind, action.stage}] > 1) {
      refuse(of_rank(rank), describe(action) + " twice", "once");
    }
    if (action.kind != ActionKind::gather && !inventory_.trains) {
      refuse(of_rank(rank), describe(action), "none without backward passes");
    }
  }
  if (!inventory_.trains) return;
  for (int s = 0; s < inventory_.stages; ++s) {
    if (inventory_.rank(s) != static_cast<int>(rank) || counts.contains({ActionKind::step, s})) {
      continue;
    }
    refuse(of_rank(rank), "no " + describe({ActionKind::step, s}), "one, as the last action");
  }
}

// Returns the index in done_ of a pass or a message.
size_t Rehearsal::index(const Action& action) const {
  const auto kind = static_cast<size_t>(action.kind);
  size_t row = kind * static_cast<size_t>(inventory_.stages) + static_cast<size_t>(action.stage);
  if (action.peer >= 0) {
    const Skip skip{std::min(action.stage, action.peer), std::max(action.stage, action.peer)};
    const auto at = std::ranges::lower_bound(skips_, skip) - skips_.begin();
    row = kCountedKinds * static_cast<size_t>(inventory_.stages) + static_cast<size_t>(at) * 4 +
          (kind - static_cast<size_t>(ActionKind::send_activation));
  }
  return row * static_cast<size_t>(inventory_.micro_batches) +
         static_cast<size_t>(action.micro_batch);
}

bool Rehearsal::is_done(ActionKind kind, int stage, int micro_batch) const {
  return is_done(Action{kind, stage, micro_batch});
}

std::optional<Action> Rehearsal::forward_needs(const Action& action) const {
  const int s = action.stage, m = action.micro_batch;
  if (s > 0) {
    const bool is_own = inventory_.rank(s - 1) == inventory_.rank(s);
    const Action input = is_own ? Action{ActionKind::forward, s - 1, m}
                                : Action{ActionKind::receive_activation, s, m};
    if (!is_done(input)) return input;
  }
  for (const auto& [from, to] : skips_) {
    const Action input{ActionKind::receive_activation, s, m, from};
    if (to == s && !is_done(input)) return input;
  }
  return std::nullopt;
}

std::optional<Action> Rehearsal::backward_needs(const Action& action) const {
  const int s = action.stage, m = action.micro_batch;
  if (!is_done(ActionKind::forward, s, m)) return Action{ActionKind::forward, s, m};
  if (s + 1 < inventory_.stages) {
    if (inventory_.rank(s + 1) == inventory_.rank(s)) {
      const Action whole{ActionKind::backward, s + 1, m};
      if (!is_done(whole) && !is_done(ActionKind::backward_input, s + 1, m)) return whole;
    } else if (const Action input{ActionKind::receive_gradient, s, m}; !is_done(input)) {
      return input;
    }
  }
  for (const auto& [from, to] : skips_) {
    const Action input{ActionKind::receive_gradient, s, m, to};
    if (from == s && !is_done(input)) return input;
  }
  return std::nullopt;
}

std::optional<Action> Rehearsal::all_backward_needs(int stage) const {
  if (unfinished_[static_cast<size_t>(stage)] == 0) return std::nullopt;
  for (int m = 0; m < inventory_.micro_batches; ++m) {
    if (is_done(ActionKind::backward_weight, stage, m)) continue;
    const Action whole{ActionKind::backward, stage, m};
    if (!is_done(whole)) return whole;
  }
  return std::nullopt;
}

std::optional<Action> Rehearsal::needs(const Action& action) const {
  const int s = action.stage, m = action.micro_batch;
  switch (action.kind) {
    case ActionKind::forward:
      return forward_needs(action);
    case ActionKind::backward:
    case ActionKind::backward_input:
      return backward_needs(action);
    case ActionKind::backward_weight: {
      const Action input{ActionKind::backward_input, s, m};
      return is_done(input) ? std::nullopt : std::optional(input);
    }
    case ActionKind::send_activation: {
      const Action forward{ActionKind::forward, s, m};
      return is_done(forward) ? std::nullopt : std::optional(forward);
    }
    case ActionKind::send_gradient: {
      const Action whole{ActionKind::backward, s, m};
      if (is_done(whole) || is_done(ActionKind::backward_input, s, m)) return std::nullopt;
      return whole;
    }
    case ActionKind::reduce:
    case ActionKind::step:
      return all_backward_needs(s);
    default:
      return std::nullopt;
  }
}

size_t Rehearsal::group_end(size_t rank) const {
  const auto& actions = ranks_[rank];
  size_t end = next_[rank];
  while (end < actions.size() && actions[end].joined) ++end;
  return std::min(end + 1, actions.size());
}

bool Rehearsal::is_at(size_t rank, const Action& wanted) const {
  for (size_t i = next_[rank]; i < group_end(rank); ++i) {
    auto action = ranks_[rank][i];
    action.joined = false;
    if (action == wanted) return true;
  }
  return false;
}

// Completes the messages that both ranks have reached. Returns whether the rank's group has
// completed.
bool Rehearsal::exchange(size_t rank) {
  bool all = true;
  for (size_t i = next_[rank]; i < group_end(rank); ++i) {
    auto action = ranks_[rank][i];
    action.joined = false;
    if (is_done(action)) continue;
    const auto partner = partner_of(action);
    const auto peer = static_cast<size_t>(inventory_.rank(partner.stage));
    if (needs(action) || needs(partner) || !is_at(peer, partner)) {
      all = false;
      continue;
    }
    done_[index(action)] = 1;
    done_[index(partner)] = 1;
    has_moved_ = true;
  }
  return all;
}

bool Rehearsal::advance(size_t rank) {
  const auto& actions = ranks_[rank];
  if (next_[rank] == actions.size()) return false;
  const size_t end = group_end(rank);
  if (is_message(actions[next_[rank]].kind)) {
    if (!exchange(rank)) return false;
  } else {
    for (size_t i = next_[rank]; i < end; ++i) {
      if (needs(actions[i])) return false;
    }
    for (size_t i = next_[rank]; i < end; ++i) {
      const auto& action = actions[i];
      if (is_pass(action.kind)) done_[index(action)] = 1;
      if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) {
        --unfinished_[static_cast<size_t>(action.stage)];
      }
    }
  }
  next_[rank] = end;
  has_moved_ = true;
  return true;
}

std::vector<Waiting> Rehearsal::waiting() const {
  std::vector<Waiting> all;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (size_t i = next_[r]; next_[r] < ranks_[r].size() && i < group_end(r); ++i) {
      const auto& action = ranks_[r][i];
      auto need = needs(action);
      if (is_message(action.kind)) {
        if (!need && is_done(action)) continue;
        if (!need) need = partner_of(action);
      } else if (!need) {
        continue;
      }
      all.push_back({r, action, need});
      break;
    }
  }
  return all;
}

void Rehearsal::run() {
  do {
    has_moved_ = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      while (advance(r)) {
      }
    }
  } while (has_moved_);
  const auto all = waiting();
  if (!all.empty()) refuse_standstill(all);
}

void Schedule::verify() const {
  Rehearsal(*this).run();
}

}  // namespace troika::layout
