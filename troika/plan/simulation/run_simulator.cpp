#include "troika/plan/simulation/run_simulator.h"

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/plan/simulation/disturbed_times.h"
#include "troika/plan/simulation/event_loop.h"
#include "troika/plan/simulation/forward_pairs.h"
#include "troika/plan/simulation/rank_state.h"
#include "troika/plan/simulation/run_account.h"
#include "troika/plan/simulation/server_runs.h"
#include "troika/plan/simulation/stage_collectives.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;

namespace {

class Simulator {
 public:
  explicit Simulator(const SimulatedRun& run)
      : run_(run),
        links_(run.cluster),
        programs_(run.schedule(), run.plan.mesh),
        recipes_(run, programs_, links_),
        loop_(links_),
        times_(run),
        pairs_(programs_, recipes_, queues_, loop_, run.overlap),
        account_(run, programs_) {
    const auto stages = static_cast<size_t>(programs_.stages());
    for (int rank = 0; rank < programs_.ranks(); ++rank) {
      ranks_.push_back({.arrived = std::vector<size_t>(programs_.of(rank).size(), 0),
                        .buckets = std::vector<size_t>(stages, 0),
                        .issued_until = std::vector<size_t>(stages, 0),
                        .factor = times_.factor(rank)});
    }
    for (const auto& group : programs_.groups()) queues_.emplace_back(group.size());
  }

  RunSimulation simulate() {
    for (int rank = 0; rank < programs_.ranks(); ++rank) advance(rank);
    while (const auto event = loop_.next()) handle(*event);
    for (const auto& one : ranks_) TROIKA_CHECK(one.step == run_.steps, "all ranks end all steps");
    return account_.finish(loop_.traffic());
  }

 private:
  const StageWork& work(int stage) const { return run_.stage(stage); }
  RankState& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  CollectiveQueue& queue_of(int rank) { return queues_[programs_.averaging(rank).group]; }
  const StageRecipes& recipes(int rank, int stage) const { return recipes_.of(rank, stage); }
  const ProgramItem& item(int rank) { return programs_.of(rank)[state(rank).next]; }

  void push(double time, EventKind kind, int who, size_t what = 0, double bytes = 0) {
    loop_.push({.time = time,
                .kind = kind,
                .who = who,
                .what = what,
                .bytes = bytes,
                .undisturbed = time});
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::pass_is_computed:
        return is_put_off(event) ? void() : begin_sums(event.who);
      case EventKind::part_ends:
        return end_part(event);
      case EventKind::pass_ends:
        return is_put_off(event) ? void() : end_pass(event.who);
      case EventKind::update_ends:
        return end_update(event.who);
      case EventKind::message_arrives:
        ++state(event.who).arrived[event.what];
        account_.receive(event.who, event.bytes);
        return advance(event.who);
      case EventKind::bucket_is_ready:
        // After its pass, whose sums then were faster than expected, the reduction issues the
        // bucket.
        if (state(event.who).activity == Activity::ready) return;
        if (!item(event.who).ends(static_cast<int>(event.what)) || is_put_off(event)) return;
        return issue_bucket(event.who, static_cast<int>(event.what));
      case EventKind::phase:
        return begin_phase(event.who);
      case EventKind::flow: {
        const auto& phase = queues_[static_cast<size_t>(event.who)].current()->phase();
        return loop_.begin(phase.uses, phase.bytes,
                           {.kind = EventKind::phase_ends, .who = event.who});
      }
      case EventKind::phase_ends:
        ++queues_[static_cast<size_t>(event.who)].current()->next_phase;
        return begin_phase(event.who);
    }
  }

  // Begins a rank's next actions, until the rank has to wait or compute.
  void advance(int rank) {
    auto& own = state(rank);
    while (own.activity == Activity::ready && own.step < run_.steps) {
      if (own.next == programs_.of(rank).size()) {
        end_step(rank);
        own.next = 0;
        continue;
      }
      const auto& action = item(rank).action;
      const auto stage = static_cast<size_t>(action.stage);
      if (is_pass(action.kind)) {
        if (own.arrived[own.next] < item(rank).takes.size()) return;
        begin_pass(rank);
      } else if (action.kind == ActionKind::gather) {
        if (!recipes(rank, action.stage).gather) {
          ++own.next;
          continue;
        }
        if (!std::exchange(own.has_issued, true)) issue(rank, *recipes(rank, action.stage).gather);
        if (!awaited_ended(rank)) return;
        own.has_issued = false;
        ++own.next;
      } else if (action.kind == ActionKind::reduce) {
        while (run_.averages_gradients(own.step) &&
               own.buckets[stage] < recipes(rank, action.stage).reductions.size()) {
          issue_bucket(rank, action.stage);
        }
        ++own.next;
      } else if (action.kind == ActionKind::step) {
        if (!own.has_updated) own.awaited = own.issued_until[stage];
        if (!awaited_ended(rank)) return;
        if (own.has_updated) {
          own.has_updated = false;
          ++own.next;
          if (run_.plan.is_asynchronous()) end_step(rank);
        } else {
          begin_update(rank);
        }
      } else {
        send(rank, action);
        ++own.next;
      }
    }
  }

  // Whether the collectives that the rank waits for have ended. If not, the rank begins to wait.
  bool awaited_ended(int rank) {
    auto& own = state(rank);
    if (queue_of(rank).finished() < own.awaited) {
      if (own.waits_since < 0) own.waits_since = now();
      return false;
    }
    if (own.waits_since >= 0 && now() > own.waits_since) {
      account_.expose(rank, now() - own.waits_since);
      account_.record({rank, own.step, "compute", "finish_backward", own.waits_since, now()});
    }
    own.waits_since = -1;
    return true;
  }

  void begin_pass(int rank) {
    auto& own = state(rank);
    const auto& begun = item(rank);
    own.arrived[own.next] -= begun.takes.size();
    own.begin = now();
    own.seconds = times_.seconds(rank, own.step, own.next, begun);
    own.activity = Activity::computes;
    begin_computing(rank);
    bool gathers = false;
    // Pipelines gather in actions of their own instead.
    const bool may_gather = run_.plan.schedule == layout::kOneStageSchedule;
    account_.begin_passes(rank, begun);
    for (const auto& pass : passes_of(begun)) {
      const bool reads = pass.kind != ActionKind::backward_weight;
      if (reads && may_gather && recipes(rank, pass.stage).gather) {
        issue(rank, *recipes(rank, pass.stage).gather);
        gathers = true;
      }
    }
    if (gathers) {
      own.activity = Activity::gathers;
    } else if (!pairs_.begin(rank, begun, own.seconds)) {
      finish_pass_at(rank, now() + own.seconds);
    }
  }

  void end_part(const Event& event) {
    const bool ends_passes = pairs_.end_part(event);
    begin_next(programs_.computing(event.who).group);
    if (!ends_passes) return;
    auto& own = state(event.who);
    own.slowed = now() - own.begin - own.seconds;  // also by waits
    end_pass(event.who);
  }

  void begin_computing(int rank) {
    state(rank).busy_before = queue_of(rank).busy(now());
    state(rank).slowed = 0;
  }

  // Collectives beside a pass, but not beside its wait for sums, take processors or memory
  // bandwidth from it: each of their seconds adds 1 - overlap. Returns true if an event of the pass
  // is later for this reason; it comes again then.
  bool is_put_off(Event event) {
    constexpr double kNegligible = 1e-6;  // of the pass
    auto& own = state(event.who);
    const double added = (1 - run_.overlap) * (queue_of(event.who).busy(now()) - own.busy_before);
    if (own.activity == Activity::computes) own.slowed = std::max(own.slowed, added);
    event.time = event.undisturbed + own.slowed;
    if (event.time - now() <= kNegligible * own.seconds) return false;
    loop_.push(event);
    return true;
  }

  // Gradients are averaged while their stage's last backward pass runs; after it, if it has two
  // parts. The pass's sums lie between its blocks, and wait for other flows as the last sums did.
  void finish_pass_at(int rank, double end) {
    const auto& own = state(rank);
    const double sums = recipes_.sums_seconds(rank, item(rank)) * own.sums_factor;
    const bool is_whole = item(rank).action.kind == ActionKind::backward && !item(rank).beside;
    if (item(rank).ends_stage && is_whole && run_.averages_gradients(own.step)) {
      const int stage = item(rank).action.stage;
      const double backward = work(stage).passes.backward();
      const double scale = backward > 0 ? (own.seconds + sums) / backward : 0;
      for (const auto& bucket : work(stage).buckets) {
        push(std::max(now(), end + sums - bucket.seconds_before_end * scale),
             EventKind::bucket_is_ready, rank, static_cast<size_t>(stage));
      }
    }
    push(end, sums > 0 ? EventKind::pass_is_computed : EventKind::pass_ends, rank);
  }

  void begin_sums(int rank) {
    auto& own = state(rank);
    own.activity = Activity::sums;
    own.sums_since = now();
    const auto& member = programs_.computing(rank);
    for (const auto& pass : passes_of(item(rank))) {
      if (const auto* one = recipes_.sums(rank, pass)) {
        own.awaited_sums = queues_[member.group].issue(member.index, one->recipe, now()) + 1;
      }
    }
    begin_next(member.group);
  }

  // Called when the parameters that a pass needs have been gathered.
  void end_gather(int rank) {
    auto& own = state(rank);
    own.activity = Activity::computes;
    const double gathering = now() - own.begin;
    const double beside = own.seconds * (1 - work(item(rank).action.stage).share_after_gather);
    const double exposed = gathering - run_.overlap * std::min(gathering, beside);
    account_.expose(rank, exposed);
    begin_computing(rank);
    finish_pass_at(rank, own.begin + own.seconds + exposed);
  }

  void end_pass(int rank) {
    auto& own = state(rank);
    account_.end_pass(rank, own.step, item(rank), {own.begin, now(), own.seconds});
    account_.expose(rank, own.slowed);
    if (own.activity == Activity::sums) {
      account_.expose(rank, now() - own.sums_since);
      own.sums_factor = (now() - own.sums_since) / recipes_.sums_seconds(rank, item(rank));
    }
    own.activity = Activity::ready;
    ++own.next;
    advance(rank);
  }

  void begin_update(int rank) {
    auto& own = state(rank);
    const int stage = item(rank).action.stage;
    const auto sharing = run_.plan.sharing_ranks(programs_.place_of_stage(stage));
    own.begin = now();
    own.seconds = work(stage).optimizer_seconds / static_cast<double>(sharing) * own.factor;
    own.activity = Activity::updates;
    push(now() + own.seconds, EventKind::update_ends, rank);
  }

  void end_update(int rank) {
    auto& own = state(rank);
    const int stage = item(rank).action.stage;
    account_.end_update(rank, own.step, own.begin, now());
    if (const auto& gather = recipes(rank, stage).gather_after_step) issue(rank, *gather);
    if (run_.averages_parameters(own.step)) {
      for (const auto& average : recipes(rank, stage).averages) issue(rank, average);
    }
    own.buckets[static_cast<size_t>(stage)] = 0;
    own.has_updated = true;
    own.activity = Activity::ready;
    advance(rank);
  }

  void end_step(int rank) {
    auto& own = state(rank);
    account_.end_step(own.step, now());
    ++own.step;
  }

  void send(int rank, const Action& action) {
    const auto target = programs_.target(rank, action);
    const int source =
        action.kind == ActionKind::send_activation ? action.stage : peer_stage(action);
    const double bytes = work(source).output_bytes;
    account_.send(rank, bytes);
    loop_.send(rank, {.kind = EventKind::message_arrives,
                      .who = target.rank,
                      .what = target.item,
                      .bytes = bytes});
    account_.record(
        {rank, state(rank).step, "messages", text_of(action), now(), std::nullopt, -1, bytes});
  }

  void issue_bucket(int rank, int stage) {
    auto& own = state(rank);
    auto& bucket = own.buckets[static_cast<size_t>(stage)];
    const size_t awaited = own.awaited;
    own.issued_until[static_cast<size_t>(stage)] =
        issue(rank, recipes(rank, stage).reductions[bucket++]);
    own.awaited = awaited;
  }

  // Adds a collective to the queue of the rank's replicas. Returns the number of their collectives
  // that have ended once this one has. The rank's next wait is for this number.
  size_t issue(int rank, const Recipe& recipe) {
    const auto& member = programs_.averaging(rank);
    state(rank).awaited = queues_[member.group].issue(member.index, recipe, now()) + 1;
    begin_next(member.group);
    return state(rank).awaited;
  }

  void begin_next(size_t group) {
    if (!queues_[group].begin(now())) return;
    push(now(), EventKind::phase, static_cast<int>(group));
    pairs_.change(group);
  }

  void begin_phase(int group) {
    const auto* running = queues_[static_cast<size_t>(group)].current();
    const bool has_ended = running->next_phase == running->recipe->phases.size();
    if (has_ended) return end_collective(static_cast<size_t>(group));
    push(now() + running->phase().seconds, EventKind::flow, group);
  }

  void end_collective(size_t group) {
    auto& queue = queues_[group];
    const auto& members = programs_.groups()[group];
    const auto& ended = *queue.current();
    for (size_t i = 0; i < members.size() && !ended.recipe->phases.empty(); ++i) {
      account_.record({members[i], state(members[i]).step, "communication", ended.recipe->name,
                       std::max(ended.issued[i], ended.before), now(), ended.recipe->bucket,
                       ended.recipe->bytes});
    }
    queue.finish(now());
    begin_next(group);
    pairs_.change(group);
    for (const int rank : members) {
      if (&queue != &queue_of(rank)) {
        if (queue.finished() == state(rank).awaited_sums) end_pass(rank);
      } else if (state(rank).activity != Activity::gathers) {
        advance(rank);
      } else if (queue.finished() >= state(rank).awaited) {
        end_gather(rank);
      }
    }
  }

  double now() const { return loop_.now(); }

  const SimulatedRun& run_;
  const ClusterLinks links_;
  const RankPrograms programs_;
  const Recipes recipes_;
  EventLoop loop_;
  const DisturbedTimes times_;
  std::vector<CollectiveQueue> queues_;  // by group
  ForwardPairs pairs_;
  RunAccount account_;
  std::vector<RankState> ranks_;
};
}  // namespace

RunSimulation simulate_run(const SimulatedRun& run) {
  run.verify();
  const auto& exchange = run.plan.exchange;
  if (exchange.method == layout::ExchangeMethod::servers) return simulate_parameter_servers(run);
  if (exchange.method == layout::ExchangeMethod::downpour) return simulate_downpour(run);
  if (exchange.method == layout::ExchangeMethod::sandblaster) return simulate_sandblaster(run);
  if (exchange.summation.cross_barrier || exchange.summation.asynchronous) {
    return simulate_summation(run);
  }
  return Simulator(run).simulate();
}

}  // namespace troika::plan
