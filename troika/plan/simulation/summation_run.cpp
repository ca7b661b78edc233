// Steps whose gradients or parameters go to summation servers, without a barrier (docs/byteps.md).
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

#include "troika/plan/simulation/host_sums.h"
#include "troika/plan/simulation/server_runs.h"

namespace troika::plan {

using layout::ActionKind;

namespace {

// A part of a rank's step: it computes, or waits for buckets and steps these, or pushes one.
struct Piece {
  double seconds = 0;
  std::vector<size_t> needs = {};
  std::optional<size_t> pushes = {};
  const ProgramItem* ends = nullptr;  // a pass that ends after it
  bool updates = false;               // by the optimizer
};

class SummationRun {
 public:
  explicit SummationRun(const SimulatedRun& run)
      : run_(run),
        ranks_(run),
        sums_(ranks_, {.added = [this](int rank, size_t partition) { count(rank, partition); },
                       .taken = [this](int rank, size_t bucket) { step(rank, bucket); }}),
        pushes_(ranks_.ranks()),
        states_(static_cast<size_t>(ranks_.ranks())) {}

  RunSimulation simulate() {
    for (int rank = 0; rank < ranks_.ranks(); ++rank) advance(rank);
    auto result = ranks_.simulate();
    if (is_asynchronous()) result.staleness = pushes_.staleness();
    return result;
  }

 private:
  struct State {
    int steps = 0;  // begun
    std::deque<Piece> pieces;
    std::vector<size_t>
        left;  // pushed buckets that are not stepped; those of the first blocks first
    double pass_begin = 0;
    int64_t seen = 0;  // pushes of others, in the rank's parameters
  };

  bool is_asynchronous() const { return run_.plan.exchange.summation.asynchronous; }
  State& state(int rank) { return states_[static_cast<size_t>(rank)]; }

  // Adds a pass that is cut at these places, which are shares of its time, ascending.
  void add_cut(std::deque<Piece>& pieces, const ServedRanks::Pass& pass,
               std::vector<std::pair<double, Piece>> cuts) {
    double done = 0;
    for (auto& [share, piece] : cuts) {
      const double at = std::clamp(share, done, 1.0);
      pieces.push_back({.seconds = pass.seconds * (at - done)});
      pieces.push_back(std::move(piece));
      done = at;
    }
    pieces.push_back({.seconds = pass.seconds * (1 - done), .ends = pass.item});
  }

  // A bucket's parameters must be stepped before the first block that uses them.
  std::vector<std::pair<double, Piece>> needs() const {
    std::vector<std::pair<double, Piece>> cuts;
    const auto& work = ranks_.work();
    for (size_t bucket = work.buckets.size(); bucket-- > 0;) {
      const double before = work.buckets[bucket].forward_seconds_before;
      cuts.push_back(
          {work.passes.forward > 0 ? before / work.passes.forward : 0, {.needs = {bucket}}});
    }
    return cuts;
  }

  std::vector<std::pair<double, Piece>> pushes() const {
    std::vector<std::pair<double, Piece>> cuts;
    const auto& work = ranks_.work();
    const double whole = work.passes.backward();
    for (size_t bucket = 0; bucket < work.buckets.size(); ++bucket) {
      const double before_end = work.buckets[bucket].seconds_before_end;
      cuts.push_back({whole > 0 ? 1 - before_end / whole : 1, {.pushes = bucket}});
    }
    return cuts;
  }

  std::vector<size_t> all_buckets() const {
    std::vector<size_t> all;
    for (size_t bucket = sums_.buckets(); bucket-- > 0;) all.push_back(bucket);
    return all;
  }

  void begin_step(int rank) {
    auto& own = state(rank);
    const bool crosses = !is_asynchronous();
    const int step = own.steps++;
    if (crosses && step == run_.steps) {
      own.pieces.push_back({.needs = all_buckets()});
      return;
    }
    const auto passes = ranks_.passes(rank, step);
    for (size_t i = 0; i < passes.size(); ++i) {
      const bool is_first = i == 0 && step > 0, is_last = i + 1 == passes.size();
      if (crosses && is_first) {
        add_cut(own.pieces, passes[i], needs());
      } else if (crosses && is_last) {
        add_cut(own.pieces, passes[i], pushes());
      } else {
        own.pieces.push_back({.seconds = passes[i].seconds, .ends = passes[i].item});
      }
    }
    if (crosses) return;
    own.pieces.push_back({.seconds = ranks_.optimizer_seconds(rank, 1), .updates = true});
    for (size_t bucket = 0; bucket < sums_.buckets(); ++bucket) {
      own.pieces.push_back({.pushes = bucket});
    }
    own.pieces.push_back({.needs = all_buckets()});
  }

  // Begins a rank's next pieces, until it computes or waits.
  void advance(int rank) {
    auto& own = state(rank);
    while (true) {
      if (own.pieces.empty()) {
        if (own.steps > run_.steps && !is_asynchronous()) return;
        own.pass_begin = ranks_.now();
        begin_step(rank);
        continue;
      }
      const auto& piece = own.pieces.front();
      if (!piece.needs.empty()) {
        if (!take_needed(rank, piece.needs)) return;
        own.pieces.pop_front();
      } else if (piece.pushes) {
        const size_t bucket = *piece.pushes;
        own.pieces.pop_front();
        own.left.insert(own.left.begin(), bucket);
        sums_.push(rank, bucket);
      } else {
        return ranks_.compute(rank, piece.seconds, [this, rank] { end_piece(rank); });
      }
    }
  }

  void end_piece(int rank) {
    auto& own = state(rank);
    const auto piece = own.pieces.front();
    own.pieces.pop_front();
    if (piece.ends) ranks_.record_pass(rank, *piece.ends, own.pass_begin);
    if (piece.updates) ranks_.record(rank, "compute", "optimizer", own.pass_begin);
    if (piece.ends) own.pass_begin = ranks_.now();
    advance(rank);
  }

  // Returns true if all of these buckets are stepped. If not, the rank steps the next bucket whose
  // mean is there, and then goes on.
  bool take_needed(int rank, const std::vector<size_t>& needed) {
    auto& own = state(rank);
    const auto is_needed = [&](size_t bucket) { return std::ranges::count(needed, bucket) > 0; };
    std::ranges::stable_partition(own.left, is_needed);
    if (own.left.empty() || !is_needed(own.left.front())) return true;
    sums_.take(rank, own.left);
    return false;
  }

  void step(int rank, size_t bucket) {
    std::erase(state(rank).left, bucket);
    const auto& work = ranks_.work();
    const bool steps = !is_asynchronous() && work.parameter_bytes > 0;
    const double share = steps ? work.buckets[bucket].bytes / work.parameter_bytes : 0;
    ranks_.compute(rank, ranks_.optimizer_seconds(rank, share), [this, rank, begin = ranks_.now()] {
      if (!is_asynchronous()) ranks_.record(rank, "compute", "optimizer", begin);
      if (state(rank).left.empty()) ranks_.end_step(rank);
      advance(rank);
    });
  }

  // Counts the pushes of the first partition, which has the number 0.
  void count(int rank, size_t partition) {
    if (partition > 0) return;
    pushes_.push(rank, state(rank).seen);
    state(rank).seen = pushes_.of_others(rank);
  }

  const SimulatedRun& run_;
  ServedRanks ranks_;
  HostSums sums_;
  PushCounts pushes_;
  std::vector<State> states_;
};

}  // namespace

RunSimulation simulate_summation(const SimulatedRun& run) {
  return SummationRun(run).simulate();
}

}  // namespace troika::plan
