// Plans whose gradients summation servers average, on clusters with spare hosts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/step_problem.h"
#include "troika/plan/search/step_layout.h"
#include "troika/plan/search/step_search.h"
#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {
namespace {

constexpr double kSlowLink = 1e3;

// Ranks on hosts of their own, a block of 1000 bytes of parameters, and messages that take longer
// than passes.
StepProblem spread_problem(int ranks, int spares) {
  auto problem = problem_of({0.1}, ranks, ranks);
  problem.cluster = layout::Cluster::uniform(ranks, 1);
  for (int i = 0; i < spares; ++i) problem.cluster.spares.push_back(fmt::format("spare-{}", i));
  problem.cluster.network = {0, kSlowLink};
  return problem;
}

double simulated_exchange(const layout::Plan& plan, const layout::Cluster& cluster, double bytes) {
  SimulatedRun run{.plan = plan, .cluster = cluster};
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{bytes, 0}}, .parameter_bytes = bytes}};
  auto without = run;
  without.stages[0].buckets.clear();
  return simulate_run(run).seconds - simulate_run(without).seconds;
}

// Section 4.1 of BytePS's paper.
TEST(SummationPlans, TakeTheTimeOfTheSplitAndOfTheSimulation) {
  for (int n = 2; n <= 4; ++n) {
    for (int k = 1; k <= n; ++k) {
      SCOPED_TRACE(fmt::format("{} ranks, {} spares", n, k));
      const StepModel model(spread_problem(n, k));
      const double bytes = 1000, d = n * n + k * n - 2 * k;
      const double expected = 2 * n * (n - 1) / d * bytes / kSlowLink;
      const auto plan = model.price({.devices = n, .sums = true}, {{1, n}});
      EXPECT_NEAR(plan.seconds, 0.1 + expected, 1e-9);
      const auto layout = layout_of(model, plan);
      EXPECT_EQ(layout.exchange.method, layout::ExchangeMethod::summation);
      EXPECT_EQ(layout.exchange.servers.count, k);
      EXPECT_NEAR(simulated_exchange(layout, model.problem().cluster, bytes), expected, 1e-9);
    }
  }
}

// A host's link carries the bytes of one rank, and each host with ranks has one server that sums.
TEST(SummationPlans, RanksOfAHostSumFirst) {
  auto problem = spread_problem(3, 1);
  problem.cluster.devices = layout::Cluster::uniform(3, 2).devices;
  problem.cluster.group = {0, 1e6};
  problem.global_batch = 6;
  const StepModel model(problem);
  const auto plan = model.price({.devices = 6, .sums = true}, {{1, 6}});
  const double bytes = 1000, d = 3 * 3 + 3 - 2;
  const double inside = bytes / problem.cluster.group.bandwidth;
  const double expected = 2 * 3 * (3 - 1) / d * bytes / kSlowLink + 2 * inside;
  EXPECT_NEAR(plan.seconds, 0.1 + expected, 1e-9);
  EXPECT_NEAR(simulated_exchange(layout_of(model, plan), problem.cluster, bytes), expected, 1e-9);
  const auto without = model.price({.devices = 6}, {{1, 6}});
  EXPECT_NEAR(plan.memory_bytes[0] - without.memory_bytes[0], bytes * (3 - 1) / d, 1e-9);
}

TEST(SummationPlans, AreChosenWhereTheyAreFastest) {
  auto problem = spread_problem(3, 2);
  problem.uses_all_devices = true;
  const auto found = search_steps(StepModel(problem));
  ASSERT_TRUE(found.best);
  EXPECT_TRUE(found.best->settings.sums);
  problem = spread_problem(2, 1);
  problem.uses_all_devices = true;
  EXPECT_FALSE(search_steps(StepModel(problem)).best->settings.sums)
      << "the link of a rank is the limit";
}

TEST(SummationPlans, AServerBesideARankTakesMemoryForItsPart) {
  const StepModel model(spread_problem(3, 1));
  const auto with = model.price({.devices = 3, .sums = true}, {{1, 3}});
  const auto without = model.price({.devices = 3}, {{1, 3}});
  EXPECT_NEAR(with.memory_bytes[0] - without.memory_bytes[0], 1000 * (3 - 1) / 10.0, 1e-9);
}

}  // namespace
}  // namespace troika::plan
