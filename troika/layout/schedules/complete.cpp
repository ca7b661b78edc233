#include "troika/layout/schedules/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "troika/base/error.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/replay.h"

namespace troika::layout {

namespace {

// A pass, or both ends of a message, with its time.
struct Event {
  double time = 0;
  bool is_pass = false;
  size_t rank = 0;  // of the pass, or of the sender
  Action action;    // the pass, or the send

  // Messages that have arrived come before passes that begin at the same time.
  bool operator<(const Event& other) const {
    return std::tie(time, is_pass, rank) < std::tie(other.time, other.is_pass, other.rank);
  }
};

class Completion {
 public:
  Completion(const Schedule& passes, const std::vector<SkipEdge>& skips, bool gathers)
      : inventory_(passes),
        skips_(skips),
        gathers_(gathers),
        unfinished_(static_cast<size_t>(inventory_.stages), inventory_.micro_batches),
        is_gathered_(static_cast<size_t>(inventory_.stages), false),
        due_(passes.ranks.size()) {
    for (const auto& skip : skips) {
      if (skip.from >= 0 && skip.from + 1 < skip.to && skip.to < inventory_.stages) continue;
      refuse("an edge that skips stages", fmt::format("from {} to {}", skip.from, skip.to),
             fmt::format("from a stage to a later one beyond its neighbour, of {} stages",
                         inventory_.stages));
    }
    whole_.ranks.resize(passes.ranks.size());
    const auto timed = replay(passes, {StageTimes{}});
    for (size_t r = 0; r < timed.size(); ++r) {
      for (const auto& pass : timed[r]) {
        events_.push_back({pass.begin, true, r, pass.action});
        add_messages(pass, r);
      }
    }
    std::ranges::stable_sort(events_, std::less{});
  }

  Schedule make() {
    for (const auto& event : events_) {
      if (event.is_pass) {
        add_pass(event);
      } else {
        whole_.ranks[event.rank].push_back(event.action);
        const auto partner = partner_of(event.action);
        whole_.ranks[static_cast<size_t>(inventory_.rank(partner.stage))].push_back(partner);
      }
    }
    for (size_t r = 0; r < whole_.ranks.size(); ++r) add_due(r);
    for (int s = 0; inventory_.trains && s < inventory_.stages; ++s) {
      whole_.ranks[static_cast<size_t>(inventory_.rank(s))].push_back({ActionKind::step, s});
    }
    return std::move(whole_);
  }

 private:
  void add_message(double time, size_t rank, const Action& send) {
    const int to = peer_stage(send);
    if (to < 0 || to >= inventory_.stages || inventory_.rank(to) == static_cast<int>(rank)) return;
    events_.push_back({time, false, rank, send});
  }

  void add_messages(const TimedPass& pass, size_t rank) {
    if (pass.action.kind == ActionKind::backward_weight) return;
    const bool is_forward = pass.action.kind == ActionKind::forward;
    Action send{is_forward ? ActionKind::send_activation : ActionKind::send_gradient,
                pass.action.stage, pass.action.micro_batch};
    add_message(pass.end, rank, send);
    for (const auto& skip : skips_) {
      if ((is_forward ? skip.from : skip.to) != send.stage) continue;
      send.peer = is_forward ? skip.to : skip.from;
      add_message(pass.end, rank, send);
    }
  }

  // Adds the reductions of stages whose backward passes are done, after the messages of these
  // passes.
  void add_due(size_t rank) {
    for (const int stage : due_[rank]) whole_.ranks[rank].push_back({ActionKind::reduce, stage});
    due_[rank].clear();
  }

  void add_pass(const Event& event) {
    auto& actions = whole_.ranks[event.rank];
    const auto stage = static_cast<size_t>(event.action.stage);
    // Nothing may be inserted between passes that start together.
    if (actions.empty() || !actions.back().joined) add_due(event.rank);
    if (gathers_ && !is_gathered_[stage]) {
      is_gathered_[stage] = true;
      actions.push_back({ActionKind::gather, event.action.stage});
    }
    actions.push_back(event.action);
    const bool ends_micro_batch = event.action.kind == ActionKind::backward ||
                                  event.action.kind == ActionKind::backward_weight;
    if (ends_micro_batch && --unfinished_[stage] == 0) {
      due_[event.rank].push_back(event.action.stage);
    }
  }

  const Inventory inventory_;
  const std::vector<SkipEdge>& skips_;
  const bool gathers_;
  std::vector<int> unfinished_;    // by stage: micro-batches
  std::vector<bool> is_gathered_;  // by stage
  std::vector<std::vector<int>> due_;
  std::vector<Event> events_;
  Schedule whole_;
};

// Returns the forward passes of each rank, sorted by turn. A stage's turn on a micro-batch must be
// later than the previous stage's, so that these orders cannot deadlock.
template <typename Turn>
Schedule forwards_by_turn(const Inventory& inventory, int ranks, int micro_batches,
                          const Turn& turn) {
  Schedule passes;
  passes.ranks.resize(static_cast<size_t>(ranks));
  for (int s = 0; s < inventory.stages; ++s) {
    auto& actions = passes.ranks[static_cast<size_t>(inventory.rank(s))];
    for (int m = 0; m < micro_batches; ++m) actions.push_back({ActionKind::forward, s, m});
  }
  for (auto& actions : passes.ranks) {
    std::ranges::stable_sort(
        actions, {}, [&](const Action& action) { return turn(action.stage, action.micro_batch); });
  }
  return passes;
}

double last_end(const Schedule& passes) {
  double last = 0;
  for (const auto& rank : replay(passes, {StageTimes{}})) {
    if (!rank.empty()) last = std::max(last, rank.back().end);
  }
  return last;
}

template <typename Keeps>
std::vector<Action> actions_where(const std::vector<Action>& actions, const Keeps& keeps) {
  std::vector<Action> kept;
  for (const auto& action : actions) {
    if (action.micro_batch < 0 || keeps(action.micro_batch)) {
      kept.push_back(action);
    } else if (!action.joined && !kept.empty()) {
      kept.back().joined = false;  // a group ends, perhaps without its last action
    }
  }
  return kept;
}

}  // namespace

Schedule complete(const Schedule& passes, const std::vector<SkipEdge>& skips, bool gathers) {
  return Completion(passes, skips, gathers).make();
}

Schedule passes_of(const Schedule& schedule) {
  Schedule passes;
  for (const auto& actions : schedule.ranks) {
    auto& kept = passes.ranks.emplace_back();
    for (const auto& action : actions) {
      if (is_pass(action.kind)) kept.push_back(action);
    }
  }
  return passes;
}

Schedule evaluation_schedule(const Schedule& training, int micro_batches,
                             const std::vector<SkipEdge>& skips) {
  if (micro_batches < 1) {
    refuse("micro-batches of an evaluation", std::to_string(micro_batches), "at least 1");
  }
  const Inventory inventory(training);
  const auto ranks = static_cast<int>(training.ranks.size());
  int64_t chunks = 0;
  for (int r = 0; r < ranks; ++r) {
    chunks = std::max<int64_t>(chunks, std::ranges::count(inventory.rank_of, r));
  }
  // `one` alternates between a rank's stages, which is better if stages lie in a V; `other` is
  // better if they lie in a loop.
  auto one = forwards_by_turn(inventory, ranks, micro_batches,
                              [&](int s, int m) { return s + chunks * m; });
  auto other = forwards_by_turn(inventory, ranks, micro_batches, [&](int s, int m) {
    return s + m % ranks + m / ranks * chunks * ranks;
  });
  return complete(last_end(one) <= last_end(other) ? one : other, skips);
}

std::vector<Action> actions_of_replica(const std::vector<Action>& actions, int replica,
                                       int replicas) {
  TROIKA_CHECK(replicas > 0 && replica >= 0 && replica < replicas, "a replica of a stage");
  return actions_where(actions, [&](int m) { return m % replicas == replica; });
}

std::vector<Action> actions_between(const std::vector<Action>& actions, int begin, int end) {
  return actions_where(actions, [&](int m) { return begin <= m && m < end; });
}

Schedule read_schedule(std::string_view text, std::string_view name) {
  auto schedule = Schedule::parse(text, name);
  const bool has_passes_alone = std::ranges::all_of(schedule.ranks, [](const auto& actions) {
    return std::ranges::all_of(actions, [](const Action& action) { return is_pass(action.kind); });
  });
  if (has_passes_alone) schedule = complete(schedule);
  schedule.verify();
  return schedule;
}

}  // namespace troika::layout
