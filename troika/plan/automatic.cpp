#include "troika/plan/automatic.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/table.h"
#include "troika/plan/block_search.h"
#include "troika/plan/greedy_search.h"
#include "troika/plan/pass_search.h"
#include "troika/plan/weight_filling.h"

namespace troika::plan {

using layout::PipelineShape;
using layout::Schedule;
using layout::ScheduleRow;
using layout::StageTimes;

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kTie = 1e-9;

std::vector<StageTimes> times_of_each(const std::vector<StageTimes>& times, int ranks) {
  if (times.size() != 1) return times;
  return {static_cast<size_t>(ranks), times.front()};
}

// Keeps the best of the orders given to it.
class Choice {
 public:
  Choice(const std::vector<StageTimes>& times, double limit, const MemoryModel& memory)
      : times_(times), limit_(limit), memory_(memory) {}

  void consider(Schedule order) {
    const double kept = std::ranges::max(peak_memory(order, memory_));
    least_memory_ = std::min(least_memory_, kept);
    if (kept > limit_ + kTie) return;
    const auto simulation = simulate(order, stage_times(order, times_));
    const std::pair cost{simulation.spans[simulation.longest], simulation.makespan};
    if (best_ && !is_less(cost, cost_)) return;
    cost_ = cost;
    best_ = std::move(order);
  }

  // Considers the order, and variants with weight parts in its waits.
  void consider_filled(const Schedule& order) {
    consider(order);
    const auto times = stage_times(order, times_);
    for (const auto overrun : {Overrun::never, Overrun::balanced, Overrun::always}) {
      if (auto filled = fill_weights(order, times, limit_, memory_, overrun)) {
        consider(std::move(*filled));
      }
    }
  }

  std::optional<Schedule>& best() { return best_; }
  double least_memory() const { return least_memory_; }

 private:
  // Compares lexicographically, with a tolerance for rounding.
  static bool is_less(const std::pair<double, double>& one,
                      const std::pair<double, double>& other) {
    const double margin = kTie * other.first;
    if (one.first < other.first - margin) return true;
    return one.first <= other.first + margin && one.second < other.second - margin;
  }

  const std::vector<StageTimes>& times_;
  const double limit_;
  const MemoryModel memory_;
  std::optional<Schedule> best_;
  std::pair<double, double> cost_;
  double least_memory_ = kNoLimit;
};

// Returns the row's shape with the requested number of stages per rank; nothing outside of its
// domain.
std::optional<PipelineShape> shape_for(const ScheduleRow& row, const PipelineShape& shape) {
  const bool takes_any = row.most_chunks > row.chunks;
  if (shape.chunks > 0 && !takes_any && shape.chunks != row.chunks) return std::nullopt;
  try {
    return require_domain(row, shape);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void search(Choice& choice, const PipelineShape& shape, const std::vector<StageTimes>& times,
            double limit, const MemoryModel& memory) {
  const SearchedPipeline pipeline{.ranks = shape.ranks,
                                  .micro_batches = shape.micro_batches,
                                  .times = times,
                                  .limit = limit,
                                  .memory = memory};
  if (auto order = greedy_passes(pipeline)) choice.consider_filled(*order);
  for (const bool fills_beyond_gradient : {false, true}) {
    for (const bool may_skip_forward : {false, true}) {
      for (const bool fills_every_wait : {false, true}) {
        auto order =
            search_passes(pipeline, {fills_beyond_gradient, may_skip_forward, fills_every_wait});
        if (order) choice.consider_filled(*order);
      }
    }
  }
}

// Returns fewer blocks for longer schedules, so that a search takes a few seconds at most.
std::vector<layout::VBlock> blocks_for(const PipelineShape& shape, double limit,
                                       const MemoryModel& memory) {
  constexpr int kPasses = 60'000, kLeast = 12, kMost = 100;
  const int count = std::clamp(kPasses / (shape.ranks * shape.micro_batches), kLeast, kMost);
  return blocks_within(shape.ranks, limit, memory, static_cast<size_t>(count));
}

}  // namespace

Schedule automatic_schedule(const PipelineShape& shape, const std::vector<StageTimes>& times,
                            double limit, const MemoryModel& memory) {
  if (int64_t{shape.ranks} * shape.micro_batches > kMostAutomaticPasses) {
    throw Error(
        "plan", ErrorKind::usage,
        {.what = "automatic schedule",
         .got = fmt::format("{} ranks and {} micro-batches", shape.ranks, shape.micro_batches),
         .expected = fmt::format("a product of at most {}", kMostAutomaticPasses),
         .hint = "schedules by name may be longer"});
  }
  const auto of_each = times_of_each(times, shape.ranks);
  Choice choice(of_each, limit, memory);
  for (const auto& row : layout::schedule_table()) {
    if (const auto own = shape_for(row, shape)) choice.consider_filled(row.order(*own));
  }
  auto one_chunk = shape;
  one_chunk.chunks = 1;
  if (shape.chunks <= 1 && shape_for(layout::schedule_row("1f1b"), one_chunk)) {
    search(choice, one_chunk, of_each, limit, memory);
  }
  if (const auto own = shape_for(layout::schedule_row("zb-v"), shape)) {
    for (const auto& block : blocks_for(*own, limit, memory)) {
      choice.consider_filled(repeat_block(block, *own));
    }
  }
  if (!choice.best()) {
    if (choice.least_memory() == kNoLimit) layout::make_schedule("1f1b", shape);  // throws
    throw Error("plan", ErrorKind::usage,
                {.what = fmt::format("automatic schedule on {} ranks", shape.ranks),
                 .got = fmt::format("a memory limit of {:g} activations of a stage", limit),
                 .expected = fmt::format("at least {:g}, the least of the schedules found",
                                         choice.least_memory())});
  }
  return complete(*choice.best());
}

}  // namespace troika::plan
