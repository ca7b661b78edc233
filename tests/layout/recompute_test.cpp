// Recomputation plans, against all possible plans.
#include "troika/layout/recompute.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/support/errors.h"

namespace troika::layout {
namespace {

using testing::ElementsAre;

TEST(RecomputePlan, OfEachPolicy) {
  EXPECT_THAT(recompute_plan("none", 5), ElementsAre());
  EXPECT_THAT(recompute_plan("full", 2),
              ElementsAre(RecomputedSegment{0, 1}, RecomputedSegment{1, 2}));
  EXPECT_THAT(
      recompute_plan("every_2", 5),
      ElementsAre(RecomputedSegment{0, 1}, RecomputedSegment{2, 3}, RecomputedSegment{4, 5}));
  EXPECT_THAT(recompute_plan("sqrt", 10),
              ElementsAre(RecomputedSegment{0, 3}, RecomputedSegment{3, 6}));
  EXPECT_THAT(recompute_plan("sqrt", 1), ElementsAre());
  EXPECT_THAT(recompute_plan("selective", 1), ElementsAre(RecomputedSegment{0, 1, {}, true}));
  for (const std::string name : {"half", "every_", "every_0", "every_x"}) {
    EXPECT_ERROR(recompute_plan(name, 5), ErrorKind::usage,
                 "[layout] unknown policy of recomputation; got " + name +
                     ", expected none, full, selective, sqrt, or every_K with K >= 1");
  }
}

TEST(RecomputePlan, OfThePoliciesOfStages) {
  EXPECT_THAT(
      recompute_plan("full", {1, 3}),
      ElementsAre(RecomputedSegment{0, 1}, RecomputedSegment{1, 2}, RecomputedSegment{2, 3}));
  EXPECT_THAT(recompute_plan("none|every_2|full|sqrt", {2, 5, 5, 14}),
              ElementsAre(RecomputedSegment{2, 3}, RecomputedSegment{4, 5}, RecomputedSegment{5, 8},
                          RecomputedSegment{8, 11}));
  EXPECT_ERROR(recompute_plan("none|full", {1, 2, 3}), ErrorKind::usage,
               "[layout] policies of recomputation for the stages of a pipeline; got none|full, "
               "expected 3 policies, one for each stage, or a single one");
}

// Follows a plan event by event, for its time and its memory.
class Execution {
 public:
  Execution(const std::vector<BlockCost>& blocks, const RecomputePlan& plan) : blocks_(blocks) {
    process(0, blocks.size(), plan);
  }
  double time = 0;
  int64_t peak = 0;

 private:
  int64_t output(size_t i) const { return blocks_[i].output_bytes; }
  void use(int64_t more) { peak = std::max(peak, held_ + more); }

  // Blocks [begin, end) forward and backward; their input is held already.
  void process(size_t begin, size_t end, const RecomputePlan& plan) {
    const int64_t last_gradient = output(end - 1);
    std::vector<RecomputedSegment> items;  // kept blocks as segments of length 0
    size_t next = begin;
    const auto keep_until = [&](size_t stop) {
      for (; next < stop; ++next) items.push_back({next, next});
    };
    for (const auto& segment : plan) {
      keep_until(segment.begin);
      items.push_back(segment);
      next = segment.end;
    }
    keep_until(end);

    for (const auto& item : items) {
      if (item.begin == item.end) {
        time += blocks_[item.begin].forward;
        held_ += blocks_[item.begin].saved_bytes;
        use(last_gradient);
        continue;
      }
      for (size_t i = item.begin; i < item.end; ++i) {
        time += blocks_[i].forward;
        use(last_gradient + output(i) + (i > item.begin ? output(i - 1) : 0));
      }
      held_ += output(item.end - 1);
    }
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      const size_t i = item->begin;
      if (i == item->end) {
        time += blocks_[i].backward;
        use(output(i) + (i > 0 ? output(i - 1) : 0));
        held_ -= blocks_[i].saved_bytes;
        continue;
      }
      held_ -= output(item->end - 1);
      process(i, item->end, item->inside);
    }
  }

  const std::vector<BlockCost>& blocks_;
  int64_t held_ = 0;
};

// All plans of blocks [begin, end), `whole` whether they may be one segment.
std::vector<RecomputePlan> all_plans(size_t begin, size_t end, bool whole) {
  if (begin == end) return {{}};
  auto plans = all_plans(begin + 1, end, true);
  for (size_t next = begin + 1; next <= end; ++next) {
    if (next == end && !whole) break;
    for (const auto& inside : all_plans(begin, next, false)) {
      for (const auto& rest : all_plans(next, end, true)) {
        RecomputePlan plan{{begin, next, inside}};
        plan.insert(plan.end(), rest.begin(), rest.end());
        plans.push_back(std::move(plan));
      }
    }
  }
  return plans;
}

TEST(PlanForBudget, IsTheFastestOfAllPlansThatFit) {
  std::mt19937 random(7);
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int planned = 0, refused = 0;
  for (size_t length = 1; length <= 6; ++length) {
    const auto plans = all_plans(0, length, false);
    for (int trial = 0; trial < 4; ++trial) {
      std::vector<BlockCost> blocks;
      for (size_t i = 0; i < length; ++i) {
        const int output = number(1, 6);
        blocks.push_back({static_cast<double>(number(1, 9)), static_cast<double>(number(1, 9)),
                          output, output + number(0, 9)});
      }
      std::vector<Execution> executions;
      int64_t most = 0;
      for (const auto& plan : plans) {
        most = std::max(most, executions.emplace_back(blocks, plan).peak);
      }
      for (int64_t budget = 0; budget <= most; ++budget) {
        double best = INFINITY;
        for (const auto& execution : executions) {
          if (execution.peak <= budget) best = std::min(best, execution.time);
        }
        if (best == INFINITY) {
          EXPECT_THROW(plan_for_budget(blocks, budget), Error);
          ++refused;
          continue;
        }
        const auto found = plan_for_budget(blocks, budget);
        const Execution execution(blocks, found.plan);
        EXPECT_EQ(found.time, best) << length << " blocks in " << budget;
        EXPECT_EQ(execution.time, best) << length << " blocks in " << budget;
        EXPECT_LE(execution.peak, budget) << length << " blocks";
        ++planned;
      }
    }
  }
  EXPECT_GT(planned, 200);
  EXPECT_GT(refused, 50);
}

TEST(PlanForBudget, RoundsSizesUp) {
  std::vector<BlockCost> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back({1, 2, 1'000'000 + 777 * i, 3'000'001 + i});
  for (int64_t budget = 7'000'000; budget < 40'000'000; budget += 3'333'333) {
    const auto found = plan_for_budget(blocks, budget);
    const Execution execution(blocks, found.plan);
    EXPECT_LE(execution.peak, budget);
    EXPECT_EQ(execution.time, found.time);
  }
  EXPECT_ERROR(
      plan_for_budget(blocks, 3 << 20), ErrorKind::usage,
      "[layout] activations do not fit into the memory for them, whatever is recomputed; got "
      "3.0 MiB, expected more");
}

}  // namespace
}  // namespace troika::layout
