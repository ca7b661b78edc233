#include "troika/plan/simulation/stage_collectives.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/context_shard.h"
#include "troika/layout/device_rates.h"

namespace troika::plan {

using layout::ExchangeMethod;

namespace {

// The groups of `size` consecutive ranks that share one copy of the model, and the groups of ranks
// that have the same shard of it.
struct ShardGroups {
  ShardGroups(const std::vector<int>& ranks, size_t size) : same(size) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (i % size == 0) shared.emplace_back();
      shared.back().push_back(ranks[i]);
      same[i % size].push_back(ranks[i]);
    }
  }
  std::vector<std::vector<int>> shared;
  std::vector<std::vector<int>> same;
};

// All groups have the collective at the same time.
std::vector<CollectivePhase> phases_of_groups(const Collective& collective,
                                              const std::vector<std::vector<int>>& groups,
                                              const ClusterLinks& links) {
  std::vector<std::vector<CollectivePhase>> all;
  for (const auto& group : groups) all.push_back(collective_phases(collective, group, links));
  return all.size() == 1 ? all.front() : together(all);
}

class RecipeMaker {
 public:
  RecipeMaker(const SimulatedRun& run, const ClusterLinks& links, const std::vector<int>& ranks)
      : run_(run),
        links_(links),
        ranks_(ranks),
        groups_(ranks, is_zero() && zero_group() > 0 ? zero_group() : ranks.size()),
        spares_(is_summation() ? run.spare_devices() : std::vector<int>{}),
        sums_on_hosts_(is_summation() && run.sums_on_hosts()) {}

  StageRecipes make(const StageWork& work) const {
    StageRecipes recipes;
    const auto& exchange = run_.plan.exchange;
    const bool gathers_after = is_zero() && exchange.zero_stage < 3;
    if (gathers_after) recipes.gather_after_step = gather(work);
    if (is_zero() && !gathers_after) recipes.gather = gather(work);
    for (const auto& bucket : work.buckets) {
      const int index = static_cast<int>(recipes.reductions.size());
      recipes.reductions.push_back({"bucket", index, bucket.bytes, reduce(bucket.bytes)});
    }
    if (exchange.method == ExchangeMethod::local_steps) {
      recipes.averages.push_back(
          {"average", -1, work.parameter_bytes, reduce(work.parameter_bytes)});
    }
    return recipes;
  }

 private:
  bool is_summation() const { return run_.plan.exchange.method == ExchangeMethod::summation; }
  const layout::SummationExchange& sums() const { return run_.plan.exchange.summation; }
  bool is_zero() const { return run_.plan.exchange.method == ExchangeMethod::zero; }
  size_t zero_group() const { return static_cast<size_t>(run_.plan.exchange.zero_group); }

  std::vector<CollectivePhase> phases(CollectiveKind kind, double bytes,
                                      const std::vector<std::vector<int>>& groups) const {
    return phases_of_groups(
        {.kind = kind,
         .algorithm = run_.all_reduce,
         .bytes = bytes,
         .reduce_per_byte = run_.reduce_per_byte,
         .spares = spares_,
         .links = sums().links,
         .sums_on_hosts = sums_on_hosts_,
         .host_sum_share = layout::local_sum_share(sums(), run_.plan.precision)},
        groups, links_);
  }

  std::vector<CollectivePhase> reduce(double bytes) const {
    if (is_summation()) {
      return phases(CollectiveKind::summation, bytes, {ranks_});
    }
    if (!is_zero()) return phases(CollectiveKind::all_reduce, bytes, {ranks_});
    auto all = phases(CollectiveKind::reduce_scatter, bytes, groups_.shared);
    const double shard = bytes / static_cast<double>(groups_.shared.front().size());
    const auto copies = phases(CollectiveKind::all_reduce, shard, groups_.same);
    all.insert(all.end(), copies.begin(), copies.end());
    return all;
  }

  Recipe gather(const StageWork& work) const {
    auto all = phases(CollectiveKind::all_gather, work.parameter_bytes, groups_.shared);
    if (!all.empty()) all.front().seconds += work.gather_seconds;
    return {"gather", -1, work.parameter_bytes, all};
  }

  const SimulatedRun& run_;
  const ClusterLinks& links_;
  const std::vector<int>& ranks_;
  const ShardGroups groups_;
  const std::vector<int> spares_;  // of summation servers
  const bool sums_on_hosts_;
};

constexpr const char* kSums = "sums";

CollectiveKind kind_of(layout::TensorCollective kind) {
  switch (kind) {
    case layout::TensorCollective::gather:
      return CollectiveKind::all_gather;
    case layout::TensorCollective::sum_of_tokens:
      return CollectiveKind::reduce_scatter;
    default:
      return CollectiveKind::all_reduce;
  }
}

// Makes the collectives of passes among the ranks of a tensor and a context axis.
class SumMaker {
 public:
  SumMaker(const SimulatedRun& run, const ClusterLinks& links, const std::vector<int>& ranks,
           const StageWork& work, const std::vector<double>& slowness)
      : run_(run), links_(links), work_(work) {
    using layout::Axis;
    const auto& mesh = run.plan.mesh;
    for (const auto axis : {Axis::tensor, Axis::context}) {
      std::map<std::array<int, layout::kAxes>, std::vector<int>> groups;
      for (const int rank : ranks) {
        auto at = mesh.coordinates(rank);
        at[axis] = 0;
        groups[at.values].push_back(rank);
      }
      for (auto& [at, group] : groups) {
        (axis == Axis::tensor ? tensor_ : context_).push_back(std::move(group));
      }
    }
    for (const int rank : ranks) {
      slowness_ = std::max(slowness_, slowness[static_cast<size_t>(rank)]);
    }
  }

  PassSums forward() const { return make(work_.forward_sums, {}, work_.forward_rounds, false); }
  // `hides`: whether the pass also computes gradients of parameters, beside its sums.
  PassSums backward(bool hides) const {
    return make(work_.backward_sums, work_.backward_gathers, work_.backward_rounds, hides);
  }
  std::vector<PassTurn> turns() const {
    std::vector<PassTurn> made;
    const auto& pass = work_.forward_turns;
    if (pass.turns.empty()) return made;
    for (const auto& turn : pass.turns) {
      made.push_back({.share = turn.seconds,
                      .recipe = {.name = kSums,
                                 .bytes = turn.bytes,
                                 .phases = phases(kind_of(turn.kind), turn.bytes, tensor_)}});
    }
    made.push_back({.share = pass.seconds_after});
    return made;
  }

 private:
  // The collectives take place one after the other, so those of one kind and size form common
  // phases. Groups along one axis have theirs at the same time.
  PassSums make(const std::vector<TensorSums>& sums, const std::vector<TensorSums>& gathers,
                const std::vector<layout::ContextRounds>& rounds, bool hides) const {
    PassSums made{.recipe = {.name = kSums}};
    const auto kind =
        work_.sums_tokens ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
    for (const auto& sum : sums) {
      add_exposed(made.recipe, phases(kind, sum.bytes, tensor_), sum.count, hides ? sum.beside : 0);
      made.recipe.bytes += sum.count * sum.bytes;
      if (!work_.sums_tokens) continue;
      add(made.recipe, phases(CollectiveKind::all_gather, sum.bytes, tensor_), sum.count);
    }
    for (const auto& gather : gathers) {
      add_exposed(made.recipe, phases(CollectiveKind::all_gather, gather.bytes, tensor_),
                  gather.count, hides ? gather.beside : 0);
      made.recipe.bytes += gather.count * gather.bytes;
    }
    for (const auto& round : rounds) {
      add_round(made.recipe, round);
      made.recipe.bytes += round.count * round.bytes;
    }
    made.alone_seconds = seconds_alone(made.recipe.phases, bandwidths_);
    return made;
  }

  std::vector<CollectivePhase> phases(CollectiveKind kind, double bytes,
                                      const std::vector<std::vector<int>>& groups) const {
    return phases_of_groups({.kind = kind,
                             .algorithm = run_.all_reduce,
                             .bytes = bytes,
                             .reduce_per_byte = run_.reduce_per_byte},
                            groups, links_);
  }

  static void add(Recipe& recipe, std::vector<CollectivePhase> phases, double count) {
    for (auto& phase : phases) {
      phase.seconds *= count;
      phase.bytes *= count;
      recipe.phases.push_back(std::move(phase));
    }
  }

  // Leaves out what `beside` seconds of computing hide of each.
  void add_exposed(Recipe& recipe, std::vector<CollectivePhase> phases, double count,
                   double beside) const {
    if (beside == 0) return add(recipe, std::move(phases), count);
    const double alone = seconds_alone(phases, bandwidths_);
    if (alone == 0) return;
    const double exposed = layout::exposed_seconds(alone, beside * slowness_, run_.overlap);
    if (exposed > 0) add(recipe, std::move(phases), count * exposed / alone);
  }

  void add_round(Recipe& recipe, const layout::ContextRounds& round) const {
    const bool is_ring = layout::parse_context_method(run_.plan.stages.context_method) ==
                         layout::ContextMethod::ring;
    auto made =
        phases(is_ring ? CollectiveKind::shift : CollectiveKind::all_to_all, round.bytes, context_);
    add_exposed(recipe, std::move(made), round.count, round.beside);
  }

  const SimulatedRun& run_;
  const ClusterLinks& links_;
  const StageWork& work_;
  const std::vector<double> bandwidths_ = links_.bandwidths();
  std::vector<std::vector<int>> tensor_, context_;  // groups
  double slowness_ = 0;
};

}  // namespace

Recipes::Recipes(const SimulatedRun& run, const RankPrograms& programs, const ClusterLinks& links)
    : programs_(programs) {
  const auto slowness = layout::device_slowness(run.cluster, run.reference_flops);
  for (int stage = 0; stage < programs.stages(); ++stage) {
    const auto& work = run.stage(stage);
    auto& recipes = stages_.emplace_back();
    auto& sums = sums_.emplace_back();
    for (const int rank : programs.ranks_of(programs.place_of_stage(stage))) {
      const auto &averaging = programs.averaging(rank), &computing = programs.computing(rank);
      if (averaging.index == 0) {
        recipes.push_back(RecipeMaker(run, links, programs.groups()[averaging.group]).make(work));
      }
      if (computing.index == 0) {
        const SumMaker maker(run, links, programs.groups()[computing.group], work, slowness);
        sums.push_back(
            {maker.forward(), maker.backward(true), maker.backward(false), maker.turns()});
      }
    }
  }
}

const StageRecipes& Recipes::of(int rank, int stage) const {
  return stages_[static_cast<size_t>(stage)][programs_.averaging(rank).number];
}

const PassSums* Recipes::sums(int rank, const layout::Action& pass) const {
  if (pass.kind == layout::ActionKind::backward_weight) return nullptr;
  const auto& all = sums_[static_cast<size_t>(pass.stage)][programs_.computing(rank).number];
  const auto& sums = pass.kind == layout::ActionKind::forward    ? all.forward
                     : pass.kind == layout::ActionKind::backward ? all.backward
                                                                 : all.backward_input;
  return sums.recipe.phases.empty() ? nullptr : &sums;
}

const std::vector<PassTurn>* Recipes::turns(int rank, const layout::Action& pass) const {
  if (pass.kind != layout::ActionKind::forward) return nullptr;
  const auto& sums = sums_[static_cast<size_t>(pass.stage)][programs_.computing(rank).number];
  return sums.turns.empty() ? nullptr : &sums.turns;
}

double Recipes::sums_seconds(int rank, const ProgramItem& item) const {
  double seconds = 0;
  for (const auto& pass : passes_of(item)) {
    if (const auto* one = sums(rank, pass)) seconds += one->alone_seconds;
  }
  return seconds;
}

size_t CollectiveQueue::issue(size_t member, const Recipe& recipe, double now) {
  const size_t number = issued_[member]++;
  const size_t at = number - finished_;
  if (at == waiting_.size()) {
    waiting_.push_back({.recipe = &recipe,
                        .issued = std::vector<double>(issued_.size(), now),
                        .missing = issued_.size()});
  }
  auto& one = waiting_[at];
  TROIKA_CHECK(one.recipe == &recipe, "replicas issue collectives in one order");
  one.issued[member] = now;
  --one.missing;
  return number;
}

CollectiveQueue::Running* CollectiveQueue::current() {
  if (waiting_.empty() || waiting_.front().missing > 0) return nullptr;
  auto& one = waiting_.front();
  one.before = last_end_;
  return &one;
}

bool CollectiveQueue::begin(double now) {
  auto* one = current();
  if (!one || std::exchange(one->has_begun, true)) return false;
  one->began = now;
  return true;
}

double CollectiveQueue::busy(double now) const {
  return busy_ + (runs() ? now - waiting_.front().began : 0);
}

void CollectiveQueue::finish(double now) {
  busy_ = busy(now);
  waiting_.pop_front();
  last_end_ = now;
  ++finished_;
}

}  // namespace troika::plan
