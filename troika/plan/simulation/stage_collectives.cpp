#include "troika/plan/simulation/stage_collectives.h"

#include <algorithm>
#include <utility>

#include "troika/base/error.h"

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

class RecipeMaker {
 public:
  RecipeMaker(const SimulatedRun& run, const ClusterLinks& links, const std::vector<int>& ranks)
      : run_(run),
        links_(links),
        ranks_(ranks),
        groups_(ranks, is_zero() && zero_group() > 0 ? zero_group() : ranks.size()) {}

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
  bool is_zero() const { return run_.plan.exchange.method == ExchangeMethod::zero; }
  size_t zero_group() const { return static_cast<size_t>(run_.plan.exchange.zero_group); }

  std::vector<CollectivePhase> phases(CollectiveKind kind, double bytes,
                                      const std::vector<std::vector<int>>& groups) const {
    std::vector<std::vector<CollectivePhase>> all;
    for (const auto& group : groups) {
      all.push_back(collective_phases({.kind = kind,
                                       .algorithm = run_.all_reduce,
                                       .bytes = bytes,
                                       .reduce_per_byte = run_.reduce_per_byte},
                                      group, links_));
    }
    return together(all);
  }

  std::vector<CollectivePhase> reduce(double bytes) const {
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
};

}  // namespace

std::vector<StageRecipes> make_recipes(const SimulatedRun& run, const RankPrograms& programs,
                                       const ClusterLinks& links) {
  std::vector<StageRecipes> recipes;
  for (int stage = 0; stage < programs.stages(); ++stage) {
    const auto& ranks = programs.replicas(programs.place_of_stage(stage));
    recipes.push_back(RecipeMaker(run, links, ranks).make(run.stage(stage)));
  }
  return recipes;
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
  const bool runs = !waiting_.empty() && waiting_.front().has_begun;
  return busy_ + (runs ? now - waiting_.front().began : 0);
}

void CollectiveQueue::finish(double now) {
  busy_ = busy(now);
  waiting_.pop_front();
  last_end_ = now;
  ++finished_;
}

}  // namespace troika::plan
