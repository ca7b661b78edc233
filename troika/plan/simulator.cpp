#include "troika/plan/simulator.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/layout/schedules/inventory.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;
using layout::Inventory;
using layout::Schedule;
using layout::StageTimes;
using layout::TimedPass;

namespace {

// Passes that start together count as one interval.
double busy_time(const std::vector<TimedPass>& passes) {
  double busy = 0;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (i == 0 || !passes[i - 1].action.joined) busy += passes[i].end - passes[i].begin;
  }
  return busy;
}

}  // namespace

Simulation simulate(const Schedule& schedule, const std::vector<StageTimes>& times) {
  Simulation simulation;
  simulation.ranks = layout::replay(schedule, times);
  simulation.peak_activations = layout::peak_activations(schedule);
  double first = 0, last = 0;
  for (const auto& passes : simulation.ranks) {
    const double begin = passes.empty() ? 0 : passes.front().begin;
    const double end = passes.empty() ? 0 : passes.back().end;
    if (simulation.spans.empty() || begin < first) first = begin;
    last = std::max(last, end);
    simulation.spans.push_back(end - begin);
    simulation.busy.push_back(busy_time(passes));
  }
  simulation.makespan = last - first;
  const auto longest = std::ranges::max_element(simulation.spans);
  simulation.longest = static_cast<size_t>(longest - simulation.spans.begin());
  if (*longest > 0) {
    simulation.bubble_rate = (*longest - simulation.busy[simulation.longest]) / *longest;
  }
  return simulation;
}

std::vector<StageTimes> stage_times(const Schedule& schedule,
                                    const std::vector<StageTimes>& of_ranks) {
  TROIKA_CHECK(of_ranks.size() == 1 || of_ranks.size() == schedule.ranks.size(),
               "times of each rank, or of one for all");
  const Inventory inventory(schedule);
  std::vector<int> stages_of(schedule.ranks.size(), 0);
  for (const int rank : inventory.rank_of) ++stages_of[static_cast<size_t>(rank)];
  std::vector<StageTimes> times;
  for (const int rank : inventory.rank_of) {
    auto one = of_ranks[of_ranks.size() == 1 ? 0 : static_cast<size_t>(rank)];
    const int share = stages_of[static_cast<size_t>(rank)];
    one.forward /= share;
    one.backward_input /= share;
    one.backward_weight /= share;
    one.saved_by_whole /= share;
    times.push_back(one);
  }
  return times;
}

std::vector<double> peak_memory(const Schedule& schedule, const MemoryModel& model) {
  const Inventory inventory(schedule);
  std::vector<double> peaks;
  for (const auto& actions : schedule.ranks) {
    // Counted as integers, so that rounding errors do not accumulate.
    int whole = 0, inputs = 0;
    double peak = 0;
    for (const auto& action : actions) {
      if (action.kind == ActionKind::forward) ++whole;
      if (action.kind == ActionKind::backward) --whole;
      if (action.kind == ActionKind::backward_input) ++inputs;
      if (action.kind == ActionKind::backward_weight) {
        --inputs;
        --whole;
      }
      peak = std::max(peak, whole - inputs * model.input_part_frees);
    }
    const auto rank = static_cast<int>(peaks.size());
    const auto stages = std::ranges::count(inventory.rank_of, rank);
    peaks.push_back(stages > 0 ? peak / static_cast<double>(stages) : 0);
  }
  return peaks;
}

}  // namespace troika::plan
