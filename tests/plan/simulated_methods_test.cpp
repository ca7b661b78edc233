// Methods of exchange: those that runs are not simulated with, and summation servers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/support/errors.h"
#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {
namespace {

TEST(RunSimulator, RefusesReplicasThatComeAndGo) {
  using layout::ExchangeMethod;
  SimulatedRun run;
  run.plan.mesh = layout::Mesh(layout::Axis::data, 2);
  run.cluster = layout::Cluster::uniform(1, 2);
  run.stages = {{.passes = {1, 1, 1}}};
  for (const auto& [name, method] : {std::pair("quorum", ExchangeMethod::fault_tolerant),
                                     {"collaborative", ExchangeMethod::collaborative}}) {
    run.plan.exchange.method = method;
    EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
                 fmt::format("[plan] exchange.method of a simulation; got {}, expected all_reduce, "
                             "summation, zero, local_steps, servers, downpour_sgd or "
                             "sandblaster_lbfgs",
                             name));
  }
}

// Alone on the links, an exchange takes the time of the optimal split: section 4.1 of BytePS's
// paper.
TEST(RunSimulator, SummationServersTakeTheTimeOfTheSplit) {
  constexpr double kBytes = 1e9, kBandwidth = 1e9;
  for (int n = 2; n <= 4; ++n) {
    for (int k = 0; k <= n; ++k) {
      SCOPED_TRACE(fmt::format("{} ranks, {} spares", n, k));
      SimulatedRun run;
      run.plan.mesh = layout::Mesh(layout::Axis::data, n);
      run.plan.exchange = {.method = layout::ExchangeMethod::summation, .servers = {.count = k}};
      run.cluster = layout::Cluster::uniform(n + k, 1);
      run.cluster.network = {0, kBandwidth};
      run.stages = {{.passes = {1, 1, 1}, .buckets = {{kBytes, 0}}, .parameter_bytes = kBytes}};
      auto without = run;
      without.stages[0].buckets.clear();
      const double time = simulate_run(run).seconds - simulate_run(without).seconds;
      const double d = n * n + k * n - 2 * k;
      EXPECT_NEAR(time, 2 * n * (n - 1) / d * kBytes / kBandwidth, 1e-6);
    }
  }
  // Ranks of one host sum first, so the network has as many flows as with one rank on each host.
  for (const bool sums_on_hosts : {true, false}) {
    SimulatedRun run;
    run.plan.mesh = layout::Mesh(layout::Axis::data, 6);
    run.plan.exchange = {.method = layout::ExchangeMethod::summation,
                         .summation = {.local_sums = sums_on_hosts ? "plain" : "none"}};
    run.cluster = layout::Cluster::uniform(3, 2);
    run.cluster.group = run.cluster.host = {0, 1e3 * kBandwidth};
    run.cluster.network = {0, kBandwidth};
    run.stages = {{.passes = {1, 1, 1}, .buckets = {{kBytes, 0}}, .parameter_bytes = kBytes}};
    auto without = run;
    without.stages[0].buckets.clear();
    const double time = simulate_run(run).seconds - simulate_run(without).seconds;
    if (sums_on_hosts) {
      EXPECT_NEAR(time, 2 * (3 - 1) / 3.0 + 2 / 1e3, 1e-6);
    } else {
      EXPECT_GT(time, 2);
    }
  }
  SimulatedRun run;
  run.plan.mesh = layout::Mesh(layout::Axis::data, 2);
  run.plan.exchange = {.method = layout::ExchangeMethod::summation, .servers = {.count = 2}};
  run.cluster = layout::Cluster::uniform(3, 1);
  run.stages = {{.passes = {1, 1, 1}}};
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] servers.count; got 2, expected at most 1, the hosts of the cluster without "
               "ranks");
}

}  // namespace
}  // namespace troika::plan
