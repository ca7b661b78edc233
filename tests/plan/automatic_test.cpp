#include "troika/plan/automatic.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/plan/paper_rows.h"
#include "tests/support/errors.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/table.h"
#include "troika/plan/block_search.h"
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
      if (chunks == 0 && row.ranks > 8) continue;  // which takes longer
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
    for (const double frees : {0.0, 0.5}) {
      const MemoryModel memory{frees};
      for (const auto& [p, m] : std::vector<std::pair<int, int>>{{3, 7}, {4, 8}, {4, 3}}) {
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
  // Two activations on four ranks: at most two micro-batches are in flight, so each takes at least
  // 8 slots, plus the ends of the step.
  const auto schedule = automatic_schedule({4, 16, 1}, {StageTimes{}}, 2, {0.0});
  EXPECT_LE(most_memory(schedule, {0.0}), 2);
  EXPECT_LE(simulate(schedule, {StageTimes{}}).makespan, 16 / 2 * 9 + 9);
  // Half of the activations of zb-v, and more than those of v-half: faster than either kind of
  // schedule.
  const auto v = automatic_schedule({8, 24, 2}, {StageTimes{}}, 7, {0.5});
  EXPECT_LE(most_memory(v, {0.5}), 7 + 1e-9);
  EXPECT_LT(rate_of(v, {}), 0.4 * rate_of(layout::make_schedule("v-half", {8, 24}), {}));
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
  // Three blocks cannot make four stages; five can make four, but not eight.
  EXPECT_THROW(
      automatic_schedule({.ranks = 4, .micro_batches = 8, .blocks = 3}, {StageTimes{}}, 8, {0.5}),
      Error);
  const auto found =
      automatic_schedule({.ranks = 4, .micro_batches = 8, .blocks = 5}, {StageTimes{}}, 4, {0.5});
  EXPECT_EQ(stage_times(found, {StageTimes{}}).size(), 4u);
}

TEST(Automatic, RefusesWhatWouldTakeLong) {
  EXPECT_ERROR(
      automatic_schedule({1000, 101}, {StageTimes{}}, 2000, {0.5}), ErrorKind::usage,
      "[plan] automatic schedule; got 1000 ranks and 101 micro-batches, expected a product "
      "of at most 100000 (schedules by name may be longer)");
}

TEST(PassSearch, EverySwitchCounts) {
  const auto& row = kZeroBubbleRows[0];
  for (const double limit : {8.0, 12.0, 16.0}) {
    const SearchedPipeline pipeline{.ranks = row.ranks,
                                    .micro_batches = row.micro_batches,
                                    .times = std::vector<StageTimes>(8, row.times),
                                    .limit = limit};
    std::vector<Schedule> orders;
    for (int switches = 0; switches < 8; ++switches) {
      const auto order =
          search_passes(pipeline, {(switches & 1) != 0, (switches & 2) != 0, (switches & 4) != 0});
      ASSERT_TRUE(order);
      EXPECT_NO_THROW(complete(*order).verify());
      EXPECT_LE(most_memory(*order, {}), limit + 1e-9);
      orders.push_back(*order);
    }
    if (limit < 16) continue;
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[0], orders[2]);
    EXPECT_NE(orders[0], orders[4]);
  }
}

TEST(BlockSearch, BlocksKeepToTheLimit) {
  EXPECT_TRUE(blocks_within(8, 2, {0.5}, 100).empty());
  for (const int p : {1, 2, 3, 5, 8}) {
    const double limit = p;
    const auto blocks = blocks_within(p, limit, {0.0}, 40);
    EXPECT_FALSE(blocks.empty()) << p;
    EXPECT_LE(blocks.size(), 40u);
    for (const auto& block : blocks) {
      const auto order = layout::repeat_block(block, {p, 3 * p, 2});
      EXPECT_NO_THROW(complete(order).verify());
      EXPECT_LE(most_memory(order, {0.0}), limit + 0.5) << p;
    }
  }
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
