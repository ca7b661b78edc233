#include "troika/layout/schedules/stage_weights.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/errors.h"
#include "troika/layout/plan.h"
#include "troika/layout/schedules/segment.h"

namespace troika::layout {
namespace {

constexpr StageWeights kAsynchronous[] = {StageWeights::stashed, StageWeights::unstashed,
                                          StageWeights::vertical_sync,
                                          StageWeights::double_buffered};

std::vector<int64_t> versions(const AsynchronousStage& stage, int64_t count) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(stage.version(i));
  return result;
}

TEST(StageWeights, AreThoseOfThePapers) {
  using testing::ElementsAre;
  const auto of = [](StageWeights weights, int64_t m, int stage) {
    return versions(asynchronous_stage({weights, m, 3}, stage), 8);
  };
  // w(t+1) = w(t) - v grad f(w1(t-n+1), ..., wn(t)).
  EXPECT_THAT(of(StageWeights::stashed, 1, 0), ElementsAre(0, 0, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(of(StageWeights::stashed, 1, 1), ElementsAre(0, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(of(StageWeights::stashed, 1, 2), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(of(StageWeights::unstashed, 1, 0), ElementsAre(0, 0, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(of(StageWeights::vertical_sync, 1, 2), ElementsAre(0, 0, 0, 1, 2, 3, 4, 5));
  // w(t+1) = w(t) - v grad f(w(t-1)).
  EXPECT_THAT(of(StageWeights::double_buffered, 2, 1), ElementsAre(0, 0, 0, 0, 1, 1, 2, 2));
  EXPECT_THAT(of(StageWeights::stashed, 2, 0), ElementsAre(0, 0, 0, 0, 1, 1, 2, 2));
}

// The warm-up of PipeDream's runtime, for each replica: the other ranks of its stage and of later
// ones, divided by its stage's replicas. The first stage's keeps NOAM micro-batches in flight
// (Narayanan et al., SOSP 2019, section 3.2).
TEST(StageWeights, WarmUpIsThatOfTheRuntimeAndOfThePaper) {
  const auto own_warm_ups = [](std::vector<int> replicas, WarmUp rule = WarmUp::runtime) {
    const AsynchronousPipeline pipeline{.micro_batches = 64,
                                        .stages = static_cast<int>(replicas.size()),
                                        .warm_up_by = rule,
                                        .replicas = replicas};
    std::vector<int64_t> result;
    for (int s = 0; s < pipeline.stages; ++s) {
      result.push_back(asynchronous_stage(pipeline, s).own_warm_up());
      EXPECT_LT(pipeline.warm_up(s), s == 0 ? 64 : pipeline.warm_up(s - 1));
    }
    const int ranks = std::accumulate(replicas.begin(), replicas.end(), 0);
    EXPECT_EQ(result.front() + 1, (ranks + replicas[0] - 1) / replicas[0]) << "NOAM";
    return result;
  };
  using testing::ElementsAre;
  EXPECT_THAT(own_warm_ups({1, 1, 1, 1}), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(own_warm_ups({2, 1, 1}), ElementsAre(1, 1, 0));
  EXPECT_THAT(own_warm_ups({7, 1}), ElementsAre(1, 0));
  EXPECT_THAT(own_warm_ups({9, 5, 1, 1}), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(own_warm_ups({8, 3, 1}), ElementsAre(1, 1, 0));
  EXPECT_THAT(own_warm_ups({1, 5, 1}), ElementsAre(6, 1, 0));
  // There are 18 and 16 micro-batches in the pipeline.
  EXPECT_THAT(own_warm_ups({9, 5, 1, 1}, WarmUp::noam), ElementsAre(1, 1, 3, 0));
  EXPECT_THAT(own_warm_ups({8, 3, 1}, WarmUp::noam), ElementsAre(1, 2, 0));
  EXPECT_THAT(own_warm_ups({3, 2}, WarmUp::noam), ElementsAre(1, 0));
  for (const std::vector<int>& replicas :
       {std::vector<int>{1, 1, 1, 1}, {2, 1, 1}, {7, 1}, {1, 5, 1}}) {
    EXPECT_EQ(own_warm_ups(replicas, WarmUp::noam), own_warm_ups(replicas));
  }
}

TEST(StageWeights, StepsByReplicasScaleLearningRates) {
  const AsynchronousPipeline pipeline{
      .micro_batches = 6, .stages = 3, .replicas = {3, 2, 1}, .steps_by_replicas = true};
  EXPECT_EQ(pipeline.least_micro_batches(), 6);
  const auto last = asynchronous_stage(pipeline, 2);
  EXPECT_EQ(last.micro_batches, 1);
  EXPECT_DOUBLE_EQ(last.learning_rate_factor, 1.0 / 3);
  const auto first = asynchronous_stage(pipeline, 0);
  EXPECT_EQ(first.micro_batches, 3);
  EXPECT_EQ(first.learning_rate_factor, 1);
  EXPECT_EQ(first.most_versions(), 2) << "warm-up + 1, as in PipeDream's runtime";
}

// Follows the order of passes, and counts the versions that later passes use, and the newest.
TEST(StageWeights, KeepNoMoreVersionsThanTheBound) {
  for (const auto weights : kAsynchronous) {
    if (weights == StageWeights::unstashed) continue;  // keeps none
    for (const auto& [ranks, each] : {std::pair(2, 1), {3, 1}, {6, 1}, {2, 2}, {4, 3}}) {
      const int in_flight = each * ranks;
      for (int64_t m = weights == StageWeights::double_buffered ? in_flight : 1; m <= 12; ++m) {
        for (int s = 0; s < ranks; ++s) {
          const auto stage = asynchronous_stage(
              {.weights = weights, .micro_batches = m, .stages = ranks, .in_flight = each}, s);
          size_t most = 1;
          const int64_t count = 5 * m + 3 * in_flight;
          for (int64_t done = m; done < count; done += m) {
            const int64_t newest = done / m;
            std::set<int64_t> kept{newest};
            // Later micro-batches use newer versions.
            for (int64_t i = done; i < done + 2 * in_flight + 2 * m; ++i) {
              EXPECT_LE(stage.version(i), (i - std::min(i, stage.warm_up)) / m)
                  << "made by the time";
              if (stage.version(i) <= newest) kept.insert(stage.version(i));
            }
            EXPECT_EQ(static_cast<int64_t>(kept.size()), newest - *kept.begin() + 1);
            most = std::max(most, kept.size());
          }
          EXPECT_EQ(static_cast<int64_t>(most), stage.most_versions())
              << asynchronous_schedule_name(weights) << ", " << ranks << " ranks, " << each << ", "
              << m << ", stage " << s;
        }
      }
    }
  }
}

TEST(StageWeights, TwoVersionsStepAfterTheNextForwardPass) {
  const auto forwards_before_step = [](StageWeights weights) {
    const auto actions = asynchronous_segment({weights, 2, 2}, 4).ranks[0];
    const auto step = std::ranges::find(actions, ActionKind::step, &Action::kind);
    return std::count_if(actions.begin(), step,
                         [](const Action& action) { return action.kind == ActionKind::forward; });
  };
  EXPECT_EQ(forwards_before_step(StageWeights::stashed), 3);
  EXPECT_EQ(forwards_before_step(StageWeights::double_buffered), 4);
}

TEST(StageWeights, OfASingleStageAreItsNewest) {
  for (const auto weights : kAsynchronous) {
    EXPECT_THAT(versions(asynchronous_stage({weights, 2, 1}, 0), 5),
                testing::ElementsAre(0, 0, 1, 1, 2));
  }
}

TEST(StageWeights, MostAheadIsAWholeNumberOfSteps) {
  const auto most_ahead = [](int64_t micro_batches, int stages, int64_t in_flight = 1) {
    return AsynchronousPipeline{
        .micro_batches = micro_batches, .stages = stages, .in_flight = in_flight}
        .most_ahead();
  };
  EXPECT_EQ(most_ahead(1, 1), 0);
  EXPECT_EQ(most_ahead(1, 4), 3);
  EXPECT_EQ(most_ahead(2, 4), 4);
  EXPECT_EQ(most_ahead(8, 4), 8);
  EXPECT_EQ(most_ahead(4, 4, 2), 8);
}

TEST(StageWeights, AreThoseOfSchedules) {
  for (const auto weights : kAsynchronous) {
    EXPECT_EQ(weights_of_schedule(asynchronous_schedule_name(weights)), weights);
  }
  EXPECT_EQ(asynchronous_schedule_names().size(), std::size(kAsynchronous));
  EXPECT_EQ(weights_of_schedule("1f1b"), StageWeights::synchronous);
}

TEST(StageWeights, PlansRefuseWhatTheyCannotBeCombinedWith) {
  const auto refused = [](const Plan& plan, const std::string& text) {
    EXPECT_ERROR(plan.verify(), ErrorKind::usage, text);
  };
  const Plan plan{
      .mesh = Mesh::parse("pipeline=4 data=2"), .schedule = "pipedream-2bw", .micro_batches = 4};
  auto other = plan;
  other.micro_batches = 3;
  refused(other,
          "[layout] schedule.name pipedream-2bw; got schedule.micro_batches 3, expected at "
          "least 4, those in flight");
  other = plan;
  other.without_flushes.in_flight = 2;
  refused(
      other,
      "[layout] schedule.name pipedream-2bw; got schedule.micro_batches 4, expected at least 8, "
      "those in flight");
  other = plan;
  other.schedule = "1f1b";
  other.without_flushes.in_flight = 2;
  refused(other, "[layout] schedule.in_flight of schedule.name 1f1b; got 2, expected 1");
  other = plan;
  other.schedule = "1f1b";
  other.without_flushes.warm_up = "noam";
  refused(other, "[layout] schedule.warm_up of schedule.name 1f1b; got noam, expected runtime");
  other = plan;
  other.schedule = "pipedream-unstashed";
  other.recompute = "full";
  refused(other,
          "[layout] schedule.name pipedream-unstashed; got memory.recompute full, expected none, "
          "or a schedule that stashes weights");
  other = plan;
  other.exchange = {.method = ExchangeMethod::zero, .zero_stage = 1};
  refused(other,
          "[layout] schedule.name pipedream-2bw; got exchange.method zero, expected all_reduce");
  other = plan;
  other.mesh = Mesh::parse("pipeline=3 data=2-3-1");
  refused(other,
          "[layout] schedule.name pipedream-2bw; got schedule.micro_batches 4, expected at least "
          "6, those in flight");
  other.schedule = "pipedream";
  other.micro_batches = 2;
  refused(other,
          "[layout] schedule.name pipedream; got schedule.micro_batches 2, expected at least 3, "
          "one for each replica of a stage");
  other.micro_batches = 4;
  other.verify();
  other.without_flushes.steps_by_replicas = true;
  refused(other,
          "[layout] schedule.steps_by_replicas; got schedule.micro_batches 4, expected a multiple "
          "of 6, for whole steps of all stages");
  other.schedule = "pipedream-vertical-sync";
  refused(
      other,
      "[layout] schedule.steps_by_replicas; got true with pipedream-vertical-sync and mesh.axes "
      "pipeline=3 data=2-3-1, expected pipedream, on stages with different numbers of "
      "replicas");
  other.schedule = "1f1b";
  refused(other,
          "[layout] schedule.steps_by_replicas of schedule.name 1f1b; got true, expected false");
}

TEST(StageWeights, AreExplained) {
  const Plan plan{.mesh = Mesh::parse("pipeline=2"), .schedule = "pipedream"};
  EXPECT_THAT(
      explain(plan),
      testing::HasSubstr("schedule   pipedream, 1 micro-batch a step\n           no flushes; a "
                         "micro-batch uses each stage's newest weights, forward and "
                         "backward\nexchange"));
}

}  // namespace
}  // namespace troika::layout
