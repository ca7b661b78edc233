// Simulated exchanges with summation servers where the ranks of a host sum first.
#include <gtest/gtest.h>

#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {
namespace {

using layout::Cluster;

SimulatedRun summed_run(int hosts, int on_host) {
  SimulatedRun run;
  run.plan.mesh = layout::Mesh(layout::Axis::data, hosts * on_host);
  run.plan.exchange.method = layout::ExchangeMethod::summation;
  run.cluster = Cluster::uniform(hosts, on_host);
  return run;
}

// Links inside hosts take no time, so hosts of several ranks are as fast as those of one.
TEST(HostSums, WithoutABarrierAHostIsLikeARank) {
  for (const int on_host : {2, 3}) {
    for (const double overlap : {1.0, 0.5}) {
      const auto simulated = [&](int ranks) {
        auto run = summed_run(3, ranks);
        run.cluster.network = {0.01, 1000};
        run.plan.exchange.summation = {.partition_bytes = 128, .cross_barrier = true};
        run.stages = {{.passes = {3, 3, 2}, .parameter_bytes = 5000}};
        run.stages[0].optimizer_seconds = 0.1;
        run.stages[0].buckets = {{2000, 2, 2}, {1500, 1, 1}, {1500, 0, 0}};
        run.overlap = overlap;
        run.steps = 5;
        return simulate_run(run);
      };
      const auto alone = simulated(1), together = simulated(on_host);
      ASSERT_EQ(together.step_seconds.size(), alone.step_seconds.size());
      EXPECT_NEAR(together.seconds, alone.seconds, 1e-9);
      EXPECT_NEAR(together.ranks.back().compute_seconds, alone.ranks.back().compute_seconds, 1e-9);
      EXPECT_NEAR(together.ranks.back().exposed_seconds, alone.ranks.back().exposed_seconds, 1e-9);
      EXPECT_EQ(together.ranks.back().sent_bytes, 0) << "its host's first rank sends";
      EXPECT_NEAR(together.ranks[0].sent_bytes, alone.ranks[0].sent_bytes, 1e-9);
    }
  }
}

// Passes of 6 s, 128 bytes to the first rank in 2 s, to the servers and back in 1 s, and to the
// other rank in 2 s. Sums of 16 bits are half as large, and a quarter of gradients of 64 bits.
TEST(HostSums, TakeTheTimeOfTheirBytes) {
  for (const bool crosses : {false, true}) {
    auto run = summed_run(2, 2);
    auto& sums = run.plan.exchange.summation;
    sums.partition_bytes = 64;
    sums.cross_barrier = crosses;
    run.cluster.group = {0, 64};
    run.cluster.network = {0, 128};
    run.stages = {{.passes = {2, 2, 2}, .buckets = {{128, 0}}, .parameter_bytes = 128}};
    const auto seconds = [&](const char* form) {
      sums.local_sums = form;
      return simulate_run(run).seconds;
    };
    EXPECT_NEAR(seconds("plain"), 11, 1e-9) << crosses;
    EXPECT_NEAR(seconds("bf16"), 9, 1e-9) << crosses;
    EXPECT_NEAR(seconds("fp16"), 9, 1e-9) << crosses;
    run.plan.precision = "64-true";
    EXPECT_NEAR(seconds("plain"), 11, 1e-9) << crosses;
    EXPECT_NEAR(seconds("bf16"), 8, 1e-9) << crosses;
  }
}

// The first rank of a slow host waits for the other one, and both hosts for them. The slow host
// sends its push in 1 s, beside its server's mean for the other host, and gets a mean in 0.5 s.
TEST(HostSums, AHostSumsWhenItsLastRankHasPushed) {
  auto run = summed_run(2, 2);
  run.plan.exchange.summation = {.partition_bytes = 64, .cross_barrier = true};
  run.cluster.network = {0, 128};
  run.stages = {{.passes = {2, 2, 2}, .buckets = {{128, 0}}, .parameter_bytes = 128}};
  run.disturbances.slow_ranks = {{3, 1.5}};
  run.steps = 3;
  EXPECT_NEAR(simulate_run(run).seconds, 3 * (9 + 1.5), 1e-9);
}

}  // namespace
}  // namespace troika::plan
