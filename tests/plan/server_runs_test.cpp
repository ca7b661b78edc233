// Simulated exchanges with servers that have no barrier, against times computed by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/errors.h"
#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/sweep.h"

namespace troika::plan {
namespace {

using layout::ExchangeMethod;

// Ranks on hosts of their own, with passes of 1 s and 2 s and an optimizer of no time.
SimulatedRun served_run(int ranks, int spares, ExchangeMethod method, double bytes) {
  SimulatedRun run;
  run.plan.mesh = layout::Mesh(layout::Axis::data, ranks);
  run.plan.exchange.method = method;
  if (run.plan.has_servers()) {
    const bool is_exact = method == ExchangeMethod::sandblaster;
    run.plan.exchange.servers.consistency = is_exact ? "sequential" : "eventual";
  }
  run.cluster = layout::Cluster::uniform(ranks + spares, 1);
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{bytes, 0}}, .parameter_bytes = bytes}};
  return run;
}

SimulatedRun crossing_run(int ranks, int spares, double bytes) {
  auto run = served_run(ranks, spares, ExchangeMethod::summation, bytes);
  run.plan.exchange.servers.count = spares;
  run.plan.exchange.summation.cross_barrier = true;
  return run;
}

// The bytes of the outward link of a rank's host.
double sent_by_host(const SimulatedRun& run, const RunSimulation& simulation, int rank) {
  return simulation.links[static_cast<size_t>(ClusterLinks(run.cluster).links_of(rank)[4])].bytes;
}

// A single rank has nothing to wait for.
TEST(ServerRuns, OneRankTakesTheTimeOfStepsWithABarrier) {
  auto run = served_run(1, 0, ExchangeMethod::all_reduce, 100);
  run.stages[0].buckets = {{60, 1.5, 0.5}, {40, 0, 0}};
  run.stages[0].optimizer_seconds = 0.5;
  run.plan.micro_batches = 2;
  run.steps = 5;
  run.disturbances = {.jitter = 0.2, .slow_ranks = {{0, 1.5}}, .seed = 3};
  run.cluster.network = {0.1, 10};
  const auto barrier = simulate_run(run);
  run.plan.exchange.method = ExchangeMethod::summation;
  run.plan.exchange.summation.cross_barrier = true;
  const auto crossed = simulate_run(run);
  run.plan.exchange.summation = {.asynchronous = true};
  const auto asynchronous = simulate_run(run);
  for (size_t step = 0; step < 5; ++step) {
    EXPECT_NEAR(asynchronous.step_seconds[step], barrier.step_seconds[step], 1e-9);
  }
  EXPECT_NEAR(crossed.seconds, barrier.seconds, 1e-9);
  EXPECT_NEAR(crossed.ranks[0].compute_seconds, barrier.ranks[0].compute_seconds, 1e-9);
  EXPECT_EQ(asynchronous.staleness->most, 0);
  EXPECT_EQ(crossed.ranks[0].peak_bytes, barrier.ranks[0].peak_bytes);
  // The server beside the replica applies the gradients in the time of the optimizer.
  run.disturbances.slow_ranks.clear();
  run.plan.exchange = {};
  const auto alone = simulate_run(run);
  run.plan.exchange = {.method = ExchangeMethod::downpour,
                       .servers = {.consistency = "eventual"},
                       .downpour = {.local_rate = 0, .overlap = false}};
  const auto downpour = simulate_run(run);
  for (size_t step = 0; step < 5; ++step) {
    EXPECT_NEAR(downpour.step_seconds[step], alone.step_seconds[step], 1e-9);
  }
}

// Two buckets of one partition, each on another server. A partition goes to its server in 1 s, and
// its mean returns in 1 s to the rank of the other host.
TEST(ServerRuns, AForwardPassBeginsWhenTheFirstMeanIsThere) {
  auto run = crossing_run(2, 0, 256);
  run.cluster.network = {0, 128};
  run.stages[0].passes = {2, 2, 2};
  run.stages[0].buckets = {{128, 2, 1}, {128, 0, 0}};
  for (const int steps : {1, 4}) {
    run.steps = steps;
    const auto simulation = simulate_run(run);
    EXPECT_NEAR(simulation.seconds, 8 * steps, 1e-9);
    EXPECT_NEAR(simulation.ranks[0].compute_seconds, 6, 1e-9);
    EXPECT_NEAR(sent_by_host(run, simulation, 0), 256 * steps, 1e-9);
  }
  // Each second in which messages are under way takes three quarters from passes. Bucket 0 is under
  // way for 2 s of the backward pass of one rank. The other one waits for its bucket 1.
  run.steps = 1;
  run.overlap = 0.25;
  EXPECT_NEAR(simulate_run(run).seconds, 8.5, 1e-9);
}

// A large bucket of the last layer is under way when that of the first layer comes.
TEST(ServerRuns, PrioritiesHideTheLastLayersBehindTheFirst) {
  auto run = crossing_run(2, 0, 5e6);
  run.cluster.network = {0, 1e6};
  run.plan.exchange.summation.partition_bytes = 20'000;
  run.stages[0].passes = {3, 3, 0};
  run.stages[0].buckets = {{4e6, 1, 2}, {1e6, 0, 0}};
  run.steps = 5;
  // From the forward pass of the last layer: 1 s, its backward pass of 2 s, and then 5 s for both
  // buckets, in which the first layer computes.
  EXPECT_NEAR(simulate_run(run).seconds, 2 + 4 * 8 + 3 + 5, 1);
  // Without priorities, the first layer's forward pass of 2 s begins after the 5 s.
  run.plan.exchange.summation.priorities = false;
  EXPECT_NEAR(simulate_run(run).seconds, 2 + 4 * 10 + 3 + 5, 1);
}

// Section 4.1 of BytePS's paper, for many partitions; and the bytes of the links.
TEST(ServerRuns, PartitionsTakeTheTimeOfTheSplit) {
  constexpr double kBytes = 1 << 20;
  constexpr int64_t kPartition = 1 << 11;
  for (int n = 2; n <= 4; ++n) {
    for (int k = 0; k <= n; ++k) {
      SCOPED_TRACE(testing::Message() << n << " ranks, " << k << " spares");
      auto run = crossing_run(n, k, kBytes);
      run.cluster.network = {0, kBytes};
      run.plan.exchange.summation.partition_bytes = kPartition;
      const auto simulation = simulate_run(run);
      const double d = n * n + k * n - 2 * k;
      const double expected = 2 * n * (n - 1) / d;
      EXPECT_GT(simulation.seconds, 3 + expected - 1e-9);
      // Links are shared fairly, and not as the split has it, so some are idle at times; less in
      // the cases that bench/byteps measures.
      const bool is_measured = n == 2 || (n == 3 && k == 1) || (n == 4 && k % 2 == 0);
      EXPECT_LT(simulation.seconds, 3 + (is_measured ? 1.1 : 1.25) * expected);
      EXPECT_NEAR(sent_by_host(run, simulation, 0), kBytes * (1 + (n - 2) * (n - k) / d),
                  (n - 1) * kPartition);
    }
  }
}

// Two ranks and two spares, which have two partitions each. Without credit, all are pushed at once;
// with it, ranks push the same partition at the same time, so a spare gets it in 2 s.
TEST(ServerRuns, CreditLimitsThePushesUnderWay) {
  auto run = crossing_run(2, 2, 512);
  run.cluster.network = {0.5, 128};
  run.plan.exchange.summation.partition_bytes = 128;
  EXPECT_NEAR(simulate_run(run).seconds, 3 + 2 * (4 + 0.5), 1e-9);
  run.plan.exchange.summation.credit_bytes = 100;  // less than a partition, which then goes alone
  EXPECT_NEAR(simulate_run(run).seconds, 3 + 3 * (2 + 2 * 0.5) + 2 * (2 + 0.5), 1e-9);
}

// Ranks of 3 s and 8.7 s a step: after 27 s they have made 9 and 3 steps.
TEST(ServerRuns, AsynchronousRanksDoNotWaitForSlowOnes) {
  auto run = served_run(2, 0, ExchangeMethod::summation, 128);
  run.plan.exchange.summation.asynchronous = true;
  run.stages[0].passes = {1, 0.5, 0.5};
  run.stages[0].optimizer_seconds = 1;
  run.disturbances.slow_ranks = {{1, 2.9}};
  run.steps = 6;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 27, 1e-9);
  // The slow rank's pushes come after 2, 3 and 3 of the other, and three of these after one of it.
  EXPECT_EQ(simulation.staleness->count, 12);
  EXPECT_EQ(simulation.staleness->most, 3);
  EXPECT_NEAR(simulation.staleness->mean, 11 / 12.0, 1e-12);
  run.plan.exchange.summation = {.cross_barrier = true};
  EXPECT_NEAR(simulate_run(run).seconds, 6 * 8.7, 1e-9);
}

// A replica and a server on two hosts: a push takes 4 s and 0.5 s of latency, its application 1 s,
// and a fetch behind it again 4.5 s.
TEST(ServerRuns, DownpourFetchesBesideItsPasses) {
  auto run = served_run(1, 1, ExchangeMethod::downpour, 400);
  auto& downpour = run.plan.exchange.downpour;
  run.cluster.network = {0.5, 100};
  run.stages[0].optimizer_seconds = 1;
  downpour = {.local_rate = 0, .overlap = false};
  run.steps = 4;
  const double passes = 3, exchange = 4.5 + 1 + 4.5;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 4 * (passes + exchange), 1e-9);
  EXPECT_NEAR(simulation.ranks[0].exposed_seconds, exchange, 1e-9);
  EXPECT_EQ(simulation.ranks[0].sent_bytes, 400);
  EXPECT_EQ(simulation.ranks[0].received_bytes, 400);
  downpour.overlap = true;
  EXPECT_NEAR(simulate_run(run).seconds, passes + 3 * exchange, 1e-9);
  run.stages[0].passes = {4, 4, 4};
  EXPECT_NEAR(simulate_run(run).seconds, 4 * 12, 1e-9);
  downpour.local_rate = 1;
  EXPECT_NEAR(simulate_run(run).seconds, 4 * 13, 1e-9);
  // The gradient that is not pushed when parameters come makes another step.
  downpour = {.n_fetch = 2, .n_push = 4, .overlap = false};
  EXPECT_NEAR(simulate_run(run).seconds, 4 * 13 + (0.5 + 4.5 + 1) + exchange, 1e-9);
  // Two servers on one host have half of the parameters each.
  downpour = {.local_rate = 0, .overlap = false};
  run.plan.exchange.servers.count = 2;
  EXPECT_NEAR(simulate_run(run).seconds, 4 * (12 + exchange - 1), 1e-9);
}

// The passes beside which a server works do not take longer.
TEST(ServerRuns, OnlyMessagesUnderWaySlowPasses) {
  auto run = served_run(1, 1, ExchangeMethod::downpour, 400);
  run.stages[0].optimizer_seconds = 4;
  run.plan.exchange.downpour = {.local_rate = 0};
  run.overlap = 0;
  run.steps = 4;
  EXPECT_NEAR(simulate_run(run).seconds, 3 + 3 * 4, 1e-9);
  // Rank 0 pushes its first bucket at 4 s, and rank 1 at 5.2 s.
  run = crossing_run(2, 0, 256);
  run.stages[0].passes = {2, 2, 2};
  run.stages[0].buckets = {{128, 2, 1}, {128, 0, 0}};
  run.disturbances.slow_ranks = {{1, 1.3}};
  run.overlap = 0;
  run.records_trace = true;
  std::vector<double> ends;
  for (const auto& span : simulate_run(run).spans) {
    if (span.rank == 0 && span.name == "backward") ends.push_back(span.end.value());
  }
  ASSERT_FALSE(ends.empty());
  for (const double end : ends) EXPECT_NEAR(end, 6, 1e-9);
}

// A push of 1e4 s, beside which a replica computes nothing of its passes of 1e-6 s.
TEST(ServerRuns, ComputingStandsStillWhileMessagesTakeAll) {
  auto run = served_run(1, 1, ExchangeMethod::downpour, 400);
  run.cluster.network = {0, 0.04};
  run.stages[0].passes = {1e-6, 1e-6, 0};
  run.plan.exchange.downpour = {.n_fetch = 100};
  run.overlap = 0;
  run.steps = 3;
  EXPECT_NEAR(simulate_run(run).seconds, 2e4, 1e-3);
}

// A push begins at 6 s and takes 4 s. The simulation ends at 9 s.
TEST(ServerRuns, LinksCountWhatMessagesUnderWayHaveMoved) {
  auto run = served_run(1, 1, ExchangeMethod::downpour, 400);
  run.cluster.network = {0, 100};
  run.plan.exchange.downpour = {.n_fetch = 100, .n_push = 2};
  run.steps = 3;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 9, 1e-9);
  const auto out = static_cast<size_t>(ClusterLinks(run.cluster).links_of(0)[4]);
  EXPECT_NEAR(simulation.links[out].bytes, 300, 1e-9);
  EXPECT_NEAR(simulation.links[out].busy_seconds, 3, 1e-9);
}

// Two ranks and a server on another host: it gets 400 bytes of both in 8 s, applies them in 1 s,
// and returns the parameters in 8 s.
TEST(ServerRuns, ParameterServersApplyStepsAsTheirConsistencySays) {
  auto run = served_run(2, 1, ExchangeMethod::servers, 400);
  auto& servers = run.plan.exchange.servers;
  servers.consistency = "sequential";
  run.cluster.network = {0.5, 100};
  run.stages[0].optimizer_seconds = 1;
  run.steps = 3;
  auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 3 * (3 + 8.5 + 1 + 8.5), 1e-9);
  EXPECT_EQ(simulation.staleness->most, 0);
  EXPECT_EQ(simulation.staleness->count, 6);
  // A rank of 12.3 s a step, for which the other waits; with a delay, only when it is 2 steps
  // ahead.
  run.cluster.network = {};
  run.stages[0].optimizer_seconds = 0;
  run.disturbances.slow_ranks = {{1, 4.1}};
  run.steps = 30;
  EXPECT_NEAR(simulate_run(run).seconds, 30 * 12.3, 1e-9);
  servers = {.consistency = "bounded", .delay = 2};
  simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 29 * 12.3, 1e-9) << "31 steps of the other";
  EXPECT_EQ(simulation.staleness->most, 2);
  servers = {.consistency = "eventual"};
  simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 49 * 3, 1e-9) << "11 steps of the slow rank";
  EXPECT_EQ(simulation.staleness->most, 49 - 11);
}

TEST(ServerRuns, DownpourReplicasDoNotWaitForEachOther) {
  auto run = served_run(4, 0, ExchangeMethod::downpour, 400);
  run.disturbances.slow_ranks = {{3, 4}};
  run.steps = 13;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.makespan, 4 * 3, 1e-9) << "the first step of the slow one";
  // In 16 steps of the fast ones, the slow one makes 4.
  EXPECT_NEAR(simulation.seconds, 16 * 3, 1e-9);
  EXPECT_GE(simulation.staleness->count, 4 * 12);
  EXPECT_GE(simulation.staleness->most, 9);
  EXPECT_NEAR(simulation.ranks[3].compute_seconds * 13, 16 * 3, 1e-9);
  // Replica 1 begins when replica 0 has made 3 steps.
  run = served_run(2, 0, ExchangeMethod::downpour, 400);
  run.plan.exchange.downpour.warm_start_steps = 3;
  run.steps = 5;
  EXPECT_NEAR(simulate_run(run).seconds, 7 * 3, 1e-9);
  EXPECT_NEAR(simulate_run(run).ranks[1].idle_seconds * 5, 3 * 3, 1e-9);
}

// The ports of one server carry what all replicas push and fetch.
TEST(ServerRuns, DownpourReplicasShareTheLinksOfServers) {
  auto run = served_run(8, 1, ExchangeMethod::downpour, 400);
  run.cluster.network = {0, 1000};
  run.steps = 20;
  // All push at the same time, and then all fetch.
  EXPECT_NEAR(simulate_run(run).seconds, 3 + 19 * 2 * (8 * 0.4), 1e-9);
}

// A rank of 3 s a portion and one of 14.7 s: see the comments.
TEST(ServerRuns, SandblasterGivesIdleReplicasBackups) {
  auto run = served_run(2, 0, ExchangeMethod::sandblaster, 400);
  run.plan.exchange.sandblaster.portions = 2;
  run.evaluations = 2;
  run.disturbances.slow_ranks = {{1, 4.9}};
  // The fast rank ends three portions at 9 s, and the slow one's at 12 s. In the second pass, it
  // has again three when it begins that of the slow one, at 21 s.
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 24, 1e-9);
  EXPECT_EQ(simulation.batch->passes, 2);
  EXPECT_EQ(simulation.batch->portions, 8);
  EXPECT_EQ(simulation.batch->backups, 2);
  EXPECT_EQ(simulation.batch->dropped, 1) << "at 14.7 s, when the slow rank gives it up";
  run.plan.exchange.sandblaster.backups = 0;
  EXPECT_NEAR(simulate_run(run).seconds, 2 * 14.7, 1e-9);
  run.plan.exchange.sandblaster.backups = 1;
  run.batch_micro_batches = 40;
  EXPECT_EQ(run.micro_batches_of_step(), 40);
  run.stages[0].passes = {0.1, 0.1, 0.1};
  EXPECT_NEAR(simulate_run(run).seconds, 24, 1e-9);
  // The first of equal replicas to end its last portion begins a backup, and gives it up after a
  // micro-batch.
  run.disturbances = {};
  EXPECT_NEAR(simulate_run(run).seconds, 2 * 6 + 0.3, 1e-9);
}

// A replica and a server on two hosts; a vector of float64 has 800 bytes.
TEST(ServerRuns, SandblasterFetchesComputesAndPushesInAPass) {
  auto run = served_run(1, 1, ExchangeMethod::sandblaster, 400);
  run.plan.exchange.sandblaster = {.history = 1, .portions = 1};
  run.cluster.network = {0.25, 100};
  run.stages[0].optimizer_seconds = 0.01;
  run.steps = 3;
  // 19 operations for the pair and its products with two pairs, 6 for the direction, and 4 and the
  // sum of the gradient for a pass.
  const double operations = 30 * 0.02, messages = 8 * 0.25 + 2 * 8;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 3 * (3 + messages + operations), 1e-9);
  EXPECT_NEAR(sent_by_host(run, simulation, 0), 3 * 800, 1e-9);
  EXPECT_NEAR(simulation.makespan, 3, 1e-9) << "of the first step";
  // Half of the square of the parameters, and its gradient.
  run.plan.exchange.sandblaster.penalty = 1;
  EXPECT_NEAR(simulate_run(run).seconds, 3 * (3 + messages + operations + 2 * 0.02), 1e-9);
}

// With fewer devices, the server's host would be cut off.
TEST(ServerRuns, SweepsOverDevicesKeepNoHostsForServers) {
  auto run = served_run(2, 1, ExchangeMethod::downpour, 400);
  EXPECT_ERROR(sweep_devices({.run = run}, {1, 2}), ErrorKind::usage,
               "[plan] a sweep over devices; got 1 server on hosts without ranks, expected servers "
               "beside ranks (leave the hosts without ranks out of the cluster)");
}

TEST(ServerRuns, UnknownMethodsAreRefused) {
  auto run = served_run(2, 0, ExchangeMethod::downpour, 400);
  run.plan.exchange.servers.replicas = 1;
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] servers of a simulation; got 1 copies and filters \"\", expected no copies "
               "and no filters");
  run.plan.exchange.servers.replicas = 0;
  run.plan.mesh = layout::Mesh::parse("data=1 tensor=2");
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] replicas of a simulation; got mesh data=1 tensor=2 and schedule one_stage, "
               "expected a data axis only, and schedule one_stage");
  run = served_run(2, 0, ExchangeMethod::sandblaster, 400);
  run.plan.micro_batches = 2;
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] schedule.micro_batches of exchange.method sandblaster_lbfgs; got 2, "
               "expected 1");
  run = served_run(1, 0, ExchangeMethod::sandblaster, 400);
  run.plan.exchange.sandblaster.portions = 1;
  run.batch_micro_batches = 2e6;
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] micro-batches of a portion, and of a pass; got 2e+06 and 2e+06, expected at "
               "most 1e+06 and 1e+08 (give fewer samples, or more of them in a micro-batch)");
  run = crossing_run(2, 0, 128);
  run.stages[0].buckets.clear();
  EXPECT_ERROR(
      simulate_run(run), ErrorKind::usage,
      "[plan] gradients of a simulation with summation servers; got none, expected a model "
      "with parameters");
}

}  // namespace
}  // namespace troika::plan
