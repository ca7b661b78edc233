#include "troika/plan/simulation/run_simulator.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/schedules/segment.h"
#include "troika/plan/simulation/disturbed_times.h"
#include "troika/plan/simulation/rank_state.h"
#include "troika/plan/simulation/run_account.h"
#include "troika/plan/simulation/stage_collectives.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;
using layout::ExchangeMethod;

namespace {

// The actions of a step, or without flushes of all steps.
layout::Schedule schedule_of(const SimulatedRun& run) {
  const auto& plan = run.plan;
  if (!plan.is_asynchronous()) return layout::schedule_of(plan);
  return layout::asynchronous_segment(plan.asynchronous(), run.steps);
}

class Simulator {
 public:
  explicit Simulator(const SimulatedRun& run)
      : run_(run),
        links_(run.cluster),
        programs_(schedule_of(run), run.plan.mesh),
        recipes_(make_recipes(run, programs_, links_)),
        flows_(links_.bandwidths()),
        times_(run),
        account_(run, programs_) {
    const auto stages = static_cast<size_t>(programs_.stages());
    for (int rank = 0; rank < programs_.ranks(); ++rank) {
      ranks_.push_back({.arrived = std::vector<size_t>(programs_.of(rank).size(), 0),
                        .buckets = std::vector<size_t>(stages, 0),
                        .issued_until = std::vector<size_t>(stages, 0),
                        .factor = times_.factor(rank)});
    }
    for (int place = 0; place < run.plan.mesh.size(layout::Axis::pipeline); ++place) {
      queues_.emplace_back(programs_.replicas(place).size());
    }
  }

  RunSimulation simulate() {
    for (int rank = 0; rank < programs_.ranks(); ++rank) advance(rank);
    for (;;) {
      // All events of this instant are handled before flows get new rates.
      const bool has_event_now = !events_.empty() && events_.top().time <= now_;
      const auto end = has_event_now ? std::nullopt : flows_.next_end(now_);
      if (end && (events_.empty() || end->time < events_.top().time)) {
        now_ = end->time;
        end_flow(*end);
      } else if (!events_.empty()) {
        const Event event = events_.top();
        events_.pop();
        now_ = event.time;
        handle(event);
      } else {
        break;
      }
    }
    for (const auto& rank : ranks_)
      TROIKA_CHECK(rank.step == run_.steps, "all ranks end all steps");
    return account_.finish(flows_.traffic());
  }

 private:
  const StageWork& work(int stage) const { return run_.stage(stage); }
  RankState& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  CollectiveQueue& queue_of(int rank) {
    return queues_[static_cast<size_t>(programs_.place(rank))];
  }
  const StageRecipes& recipes(int stage) const { return recipes_[static_cast<size_t>(stage)]; }
  const ProgramItem& item(int rank) { return programs_.of(rank)[state(rank).next]; }

  void push(double time, EventKind kind, int who, size_t what = 0, double bytes = 0) {
    events_.push({time, order_++, kind, who, what, bytes, time});
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::pass_ends:
        return is_put_off(event) ? void() : end_pass(event.who);
      case EventKind::update_ends:
        return end_update(event.who);
      case EventKind::message_arrives:
        ++state(event.who).arrived[event.what];
        account_.receive(event.who, event.bytes);
        return advance(event.who);
      case EventKind::bucket_is_ready:
        return is_put_off(event) ? void() : issue_bucket(event.who, static_cast<int>(event.what));
      case EventKind::phase:
        return begin_phase(event.who);
      case EventKind::flow: {
        const auto* running = queues_[static_cast<size_t>(event.who)].current();
        const auto& phase = running->recipe->phases[running->next_phase];
        return begin_flow(phase.uses, phase.bytes, {.next = event});
      }
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
        if (!recipes(action.stage).gather) {
          ++own.next;
          continue;
        }
        if (!std::exchange(own.has_issued, true)) issue(rank, *recipes(action.stage).gather);
        if (!awaited_ended(rank)) return;
        own.has_issued = false;
        ++own.next;
      } else if (action.kind == ActionKind::reduce) {
        while (averages_gradients(own.step) &&
               own.buckets[stage] < recipes(action.stage).reductions.size()) {
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
      if (own.waits_since < 0) own.waits_since = now_;
      return false;
    }
    if (own.waits_since >= 0 && now_ > own.waits_since) {
      account_.expose(rank, now_ - own.waits_since);
      account_.record({rank, own.step, "compute", "finish_backward", own.waits_since, now_});
    }
    own.waits_since = -1;
    return true;
  }

  void begin_pass(int rank) {
    auto& own = state(rank);
    const auto& begun = item(rank);
    own.arrived[own.next] -= begun.takes.size();
    own.begin = now_;
    own.seconds = times_.seconds(rank, own.step, own.next, begun);
    own.activity = Activity::computes;
    begin_computing(rank);
    bool gathers = false;
    account_.begin_passes(rank, begun);
    for (const auto& pass : passes_of(begun)) {
      const bool reads = pass.kind != ActionKind::backward_weight;
      if (reads && gathers_in_passes() && recipes(pass.stage).gather) {
        issue(rank, *recipes(pass.stage).gather);
        gathers = true;
      }
    }
    if (gathers) {
      own.activity = Activity::gathers;
    } else {
      finish_pass_at(rank, now_ + own.seconds);
    }
  }

  void begin_computing(int rank) {
    state(rank).busy_before = queue_of(rank).busy(now_);
    state(rank).slowed = 0;
  }

  // Collectives that run beside a pass take processors or memory bandwidth from it: each of their
  // seconds adds 1 - overlap to the pass. Returns true if an event of the pass is later for this
  // reason; it comes again then.
  bool is_put_off(Event event) {
    constexpr double kNegligible = 1e-6;  // of the pass
    auto& own = state(event.who);
    const double beside = queue_of(event.who).busy(now_) - own.busy_before;
    own.slowed = std::max(own.slowed, (1 - run_.overlap) * beside);
    event.time = event.undisturbed + own.slowed;
    if (event.time - now_ <= kNegligible * own.seconds) return false;
    event.order = order_++;
    events_.push(event);
    return true;
  }

  // Gradients are averaged while their stage's last backward pass runs. Where a schedule has
  // backward passes in two parts, averages begin after the last one.
  void finish_pass_at(int rank, double end) {
    const auto& own = state(rank);
    const bool is_whole = item(rank).action.kind == ActionKind::backward && !item(rank).beside;
    if (item(rank).ends_stage && is_whole && averages_gradients(own.step)) {
      const int stage = item(rank).action.stage;
      const double backward = work(stage).passes.backward();
      const double scale = backward > 0 ? own.seconds / backward : 0;
      for (const auto& bucket : work(stage).buckets) {
        push(std::max(now_, end - bucket.seconds_before_end * scale), EventKind::bucket_is_ready,
             rank, static_cast<size_t>(stage));
      }
    }
    push(end, EventKind::pass_ends, rank);
  }

  // Called when the parameters that a pass needs have been gathered.
  void end_gather(int rank) {
    auto& own = state(rank);
    own.activity = Activity::computes;
    const double gathering = now_ - own.begin;
    const double beside = own.seconds * (1 - work(item(rank).action.stage).share_after_gather);
    const double exposed = gathering - run_.overlap * std::min(gathering, beside);
    account_.expose(rank, exposed);
    begin_computing(rank);
    finish_pass_at(rank, own.begin + own.seconds + exposed);
  }

  void end_pass(int rank) {
    auto& own = state(rank);
    account_.end_pass(rank, own.step, item(rank), {own.begin, now_, own.seconds});
    account_.expose(rank, own.slowed);
    own.activity = Activity::ready;
    ++own.next;
    advance(rank);
  }

  void begin_update(int rank) {
    auto& own = state(rank);
    const double sharing = static_cast<double>(run_.plan.sharing_ranks());
    own.begin = now_;
    own.seconds = work(item(rank).action.stage).optimizer_seconds / sharing * own.factor;
    own.activity = Activity::updates;
    push(now_ + own.seconds, EventKind::update_ends, rank);
  }

  void end_update(int rank) {
    auto& own = state(rank);
    const int stage = item(rank).action.stage;
    account_.end_update(rank, own.step, own.begin, now_);
    if (const auto& gather = recipes(stage).gather_after_step) issue(rank, *gather);
    if (averages_parameters(own.step)) {
      for (const auto& average : recipes(stage).averages) issue(rank, average);
    }
    own.buckets[static_cast<size_t>(stage)] = 0;
    own.has_updated = true;
    own.activity = Activity::ready;
    advance(rank);
  }

  void end_step(int rank) {
    auto& own = state(rank);
    account_.end_step(own.step, now_);
    ++own.step;
  }

  void send(int rank, const Action& action) {
    const auto target = programs_.target(rank, action);
    const int source =
        action.kind == ActionKind::send_activation ? action.stage : peer_stage(action);
    const double bytes = work(source).output_bytes;
    const auto path = links_.path(rank, target.rank);
    account_.send(rank, bytes);
    begin_flow(path.uses, bytes,
               {.next = {.kind = EventKind::message_arrives,
                         .who = target.rank,
                         .what = target.item,
                         .bytes = bytes},
                .latency = path.latency});
    account_.record(
        {rank, state(rank).step, "messages", text_of(action), now_, std::nullopt, -1, bytes});
  }

  void begin_flow(const std::vector<LinkUse>& uses, double bytes, const FlowOwner& owner) {
    const auto flow = flows_.begin(now_, uses, bytes);
    if (flow >= owners_.size()) owners_.resize(flow + 1);
    owners_[flow] = owner;
  }

  void end_flow(const SharedLinks::End& end) {
    flows_.finish(end);
    const auto owner = owners_[end.flow];
    const auto& next = owner.next;
    if (next.kind == EventKind::message_arrives) {
      return push(now_ + owner.latency, next.kind, next.who, next.what, next.bytes);
    }
    ++queues_[static_cast<size_t>(next.who)].current()->next_phase;
    begin_phase(next.who);
  }

  void issue_bucket(int rank, int stage) {
    auto& own = state(rank);
    auto& bucket = own.buckets[static_cast<size_t>(stage)];
    const size_t awaited = own.awaited;
    own.issued_until[static_cast<size_t>(stage)] = issue(rank, recipes(stage).reductions[bucket++]);
    own.awaited = awaited;
  }

  // Adds a collective to the queue of the rank's place. Returns the number of collectives of this
  // place that have ended once this one has. The rank's next wait is for this number.
  size_t issue(int rank, const Recipe& recipe) {
    auto& queue = queue_of(rank);
    const auto member = static_cast<size_t>(programs_.replica(rank));
    state(rank).awaited = queue.issue(member, recipe, now_) + 1;
    begin_next(programs_.place(rank));
    return state(rank).awaited;
  }

  void begin_next(int place) {
    if (queues_[static_cast<size_t>(place)].begin(now_)) push(now_, EventKind::phase, place);
  }

  void begin_phase(int place) {
    const auto* running = queues_[static_cast<size_t>(place)].current();
    const auto& phases = running->recipe->phases;
    if (running->next_phase == phases.size()) return end_collective(place);
    push(now_ + phases[running->next_phase].seconds, EventKind::flow, place);
  }

  void end_collective(int place) {
    auto& queue = queues_[static_cast<size_t>(place)];
    const auto& members = programs_.replicas(place);
    const auto& ended = *queue.current();
    for (size_t i = 0; i < members.size() && !ended.recipe->phases.empty(); ++i) {
      account_.record({members[i], state(members[i]).step, "communication", ended.recipe->name,
                       std::max(ended.issued[i], ended.before), now_, ended.recipe->bucket,
                       ended.recipe->bytes});
    }
    queue.finish(now_);
    begin_next(place);
    for (const int rank : members) {
      if (state(rank).activity != Activity::gathers) {
        advance(rank);
      } else if (queue.finished() >= state(rank).awaited) {
        end_gather(rank);
      }
    }
  }

  bool is_one_stage() const { return run_.plan.schedule == layout::kOneStageSchedule; }
  // Pipelines gather in actions of their own instead.
  bool gathers_in_passes() const { return is_one_stage(); }
  bool is_local() const { return run_.plan.exchange.method == ExchangeMethod::local_steps; }
  bool averages_gradients(int step) const {
    return !is_local() || step < run_.plan.exchange.warmup_steps;
  }
  bool averages_parameters(int step) const {
    const auto& exchange = run_.plan.exchange;
    const int after_warmup = step - static_cast<int>(exchange.warmup_steps) + 1;
    return is_local() && after_warmup > 0 && after_warmup % exchange.period == 0;
  }

  const SimulatedRun& run_;
  const ClusterLinks links_;
  const RankPrograms programs_;
  const std::vector<StageRecipes> recipes_;
  SharedLinks flows_;
  const DisturbedTimes times_;
  RunAccount account_;
  std::vector<CollectiveQueue> queues_;  // by place
  std::vector<RankState> ranks_;
  std::vector<FlowOwner> owners_;  // by flow
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double now_ = 0;
};
}  // namespace

RunSimulation simulate_run(const SimulatedRun& run) {
  run.verify();
  return Simulator(run).simulate();
}

}  // namespace troika::plan
