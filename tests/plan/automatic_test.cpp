#include "troika/plan/automatic.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/plan/paper_rows.h"
#include "tests/support/errors.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/table.h"
#include "troika/plan/pass_search.h"
#include "troika/plan/weight_filling.h"

namespace troika::plan {
namespace {

using layout::PipelineShape;
using layout::Schedule;
using layout::StageTimes;

double rate_of(const Schedule& schedule, const StageTimes& times) {
  return simulate(schedule, stage_times(schedule, {times})).bubble_rate;
}
double most_memory(const Schedule& schedule, const MemoryModel& memory) {
  return std::ranges::max(peak_memory(schedule, memory));
}

TEST(Automatic, IsAsGoodAsTheAuthorsSearch) {
  for (const auto& row : kZeroBubbleRows) {
    const double limit = 2.0 * row.ranks;
    for (const int chunks : {0, 1}) {
      const auto schedule = automatic_schedule({row.ranks, row.micro_batches, chunks}, {row.times},
                                               limit, MemoryModel{});
      EXPECT_NO_THROW(schedule.verify());
      EXPECT_LE(rate_of(schedule, row.times), row.zb_2p + 5e-4);
      EXPECT_LE(most_memory(schedule, {}), limit + 1e-9);
    }
    // With half of that memory it is the authors' ZB-1p, whose rate is ZB-H1's.
    const auto half = automatic_schedule({row.ranks, row.micro_batches, 1}, {row.times}, row.ranks,
                                         MemoryModel{});
    EXPECT_LE(rate_of(half, row.times), row.zb_h1 + 5e-5);
  }
}

TEST(Automatic, IsNeverWorseThanTheTableWithinItsMemory) {
  const std::vector<StageTimes> rows{{1, 1, 1, 0}, {2, 3, 1, 0.2}, {1, 1, 3, 0.5}, {4, 1, 2, 0}};
  for (const auto& times : rows) {
    for (const double frees : {0.0, 0.5, 1.0}) {
      const MemoryModel memory{frees};
      for (const auto& [p, m] : std::vector<std::pair<int, int>>{{2, 4}, {3, 7}, {4, 8}, {4, 3}}) {
        for (const auto& row : layout::schedule_table()) {
          if (row.takes && !row.takes({p, m, row.chunks})) continue;
          const auto own = layout::make_schedule(row.name, {p, m});
          const double limit = most_memory(own, memory);
          const auto found = automatic_schedule({p, m}, {times}, limit, memory);
          EXPECT_NO_THROW(found.verify());
          EXPECT_LE(most_memory(found, memory), limit + 1e-9) << row.name;
          EXPECT_LE(rate_of(found, times), rate_of(own, times) + 1e-9) << row.name;
        }
      }
    }
  }
}

TEST(Automatic, KeepsPipelinesBusyWithLittleMemory) {
  // Two activations on four ranks: at most two micro-batches are under way.
  const auto schedule = automatic_schedule({4, 16, 1}, {StageTimes{}}, 2, {0.0});
  EXPECT_LE(most_memory(schedule, {0.0}), 2);
  const auto naive = layout::make_schedule("naive", {4, 16});
  EXPECT_LT(simulate(schedule, {StageTimes{}}).makespan,
            0.7 * simulate(naive, {StageTimes{}}).makespan);
}

TEST(Automatic, TakesTimesOfEachRank) {
  const std::vector<StageTimes> times{{1, 1, 1, 0}, {2, 2, 2, 0}, {1, 2, 0.5, 0}};
  const auto span = [&](const Schedule& schedule) {
    const auto simulation = simulate(schedule, stage_times(schedule, times));
    return simulation.spans[simulation.longest];
  };
  const auto found = automatic_schedule({3, 9, 1}, times, 6, {0.5});
  for (const auto* name : {"1f1b", "zb-h1", "zb-h2"}) {
    EXPECT_LE(span(found), span(layout::make_schedule(name, {3, 9}))) << name;
  }
}

TEST(Automatic, RefusesWhatNoScheduleKeeps) {
  EXPECT_ERROR(automatic_schedule({4, 8, 1}, {StageTimes{}}, 0.5, {0.5}), ErrorKind::usage,
               "[plan] automatic schedule on 4 ranks; got a memory limit of 0.5 activations of a "
               "stage, expected at least 1, the least of the schedules found");
  EXPECT_THROW(automatic_schedule({0, 8}, {StageTimes{}}, 4, {0.5}), Error);
  EXPECT_THROW(automatic_schedule({4, 0}, {StageTimes{}}, 4, {0.5}), Error);
  // Three blocks make no four stages; five make four, but no eight.
  EXPECT_THROW(
      automatic_schedule({.ranks = 4, .micro_batches = 8, .blocks = 3}, {StageTimes{}}, 8, {0.5}),
      Error);
  const auto found =
      automatic_schedule({.ranks = 4, .micro_batches = 8, .blocks = 5}, {StageTimes{}}, 4, {0.5});
  EXPECT_EQ(stage_times(found, {StageTimes{}}).size(), 4u);
}

TEST(FillWeights, UsesWaits) {
  // Rank 0 waits for both gradients; a weight part fits between them.
  const auto order = Schedule::parse("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n");
  const auto filled = fill_weights(order, {{1, 1, 1, 0}, {1, 1, 1, 0}}, 2, {0.0}, Overrun::never);
  ASSERT_TRUE(filled);
  EXPECT_EQ(filled->text(), "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1\n");
  // With room for one activation, its weight part goes first, and rank 0's order cannot be kept.
  EXPECT_FALSE(fill_weights(order, {{1, 1, 1, 0}, {1, 1, 1, 0}}, 1, {0.0}, Overrun::never));
}

}  // namespace
}  // namespace troika::plan
