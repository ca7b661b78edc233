// Simulated pipelines without flushes: steps between two drains, and the versions that they keep.
#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "tests/plan/pipeline_run.h"
#include "troika/layout/plan.h"
#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {
namespace {

// Between two drains, stages make steps as 1f1b makes passes of all their micro-batches.
TEST(SimulatedSegments, HaveBubblesOnlyAtDrains) {
  constexpr int kSteps = 30;
  for (const auto& schedule : layout::asynchronous_schedule_names()) {
    for (int p = 1; p <= 5; ++p) {
      for (const int m : {p, p + 2}) {
        SCOPED_TRACE(testing::Message() << schedule << ", p " << p << ", m " << m);
        auto run = pipeline_run("pipeline=" + std::to_string(p), schedule, m);
        run.steps = kSteps;
        const auto simulated = simulate_run(run);
        EXPECT_DOUBLE_EQ(simulated.seconds, 3.0 * (m * kSteps + p - 1));
        for (size_t step = 2; step + 2 < kSteps; ++step) {
          EXPECT_DOUBLE_EQ(simulated.step_seconds[step], 3.0 * m) << "step " << step;
        }
        // A step takes each stage's time alone.
        run.stages = {{.passes = {1, 1, 1}, .optimizer_seconds = 0.5}};
        EXPECT_DOUBLE_EQ(simulate_run(run).step_seconds[kSteps / 2], 3.0 * m + 0.5);
      }
    }
  }
}

TEST(SimulatedSegments, KeepVersions) {
  auto run = pipeline_run("pipeline=4", "pipedream", 1);
  run.steps = 20;
  run.stages = {
      {.passes = {1, 1, 1}, .parameter_bytes = 100, .resident_bytes = 300, .activation_bytes = 10}};
  const auto peaks = [&] {
    std::vector<double> result;
    for (const auto& rank : simulate_run(run).ranks) result.push_back(rank.peak_bytes);
    return result;
  };
  EXPECT_THAT(peaks(), testing::ElementsAre(300 + 3 * 100 + 4 * 10, 300 + 2 * 100 + 3 * 10,
                                            300 + 100 + 2 * 10, 300 + 10));
  run.plan.schedule = "pipedream-2bw";
  run.plan.micro_batches = 4;
  EXPECT_THAT(peaks(), testing::ElementsAre(300 + 100 + 4 * 10, 300 + 100 + 3 * 10,
                                            300 + 100 + 2 * 10, 300 + 100 + 10));
}

// Two replicas of each of two stages make steps of two micro-batches, of 3 s each. The average of a
// stage's gradients takes 1 s, or 1.5 s, after the last backward pass of a step.
TEST(SimulatedSegments, AverageBehindTheNextForwardPassOfTwoVersions) {
  auto run = pipeline_run("pipeline=2 data=2", "pipedream", 2);
  run.steps = 12;
  run.cluster.network = {0, 100};
  run.records_trace = true;
  for (const double average : {1.0, 1.5}) {
    run.stages = {{.passes = {1, 1, 1}, .buckets = {{100 * average, 0}}}};
    run.plan.schedule = "pipedream";
    EXPECT_DOUBLE_EQ(simulate_run(run).step_seconds[6], 6 + average);
    run.plan.schedule = "pipedream-2bw";
    const auto found = simulate_run(run);
    // The forward pass of 1 s hides the rest.
    EXPECT_DOUBLE_EQ(found.step_seconds[6], 6 + average - 1);
    // The last stage has no micro-batches in flight: its first step ends at 7 s. The third forward
    // pass begins together with the average, and the third backward pass after it.
    std::vector<double> forwards, backwards, averages;
    for (const auto& span : found.spans) {
      if (span.rank != 2) continue;
      if (span.name == "bucket") averages.push_back(span.begin);
      if (span.name == "forward") forwards.push_back(span.begin);
      if (span.name == "backward") backwards.push_back(span.begin);
    }
    EXPECT_DOUBLE_EQ(averages.at(0), 7);
    EXPECT_DOUBLE_EQ(forwards.at(2), 7);
    EXPECT_DOUBLE_EQ(backwards.at(2), 7 + average);
  }
}

}  // namespace
}  // namespace troika::plan
