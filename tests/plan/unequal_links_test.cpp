// Clusters whose hosts have links of different bandwidths: the search, the simulation and runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/random_chains.h"
#include "tests/plan/step_problem.h"
#include "tests/support/errors.h"
#include "troika/layout/summation.h"
#include "troika/plan/search/machine_levels.h"
#include "troika/plan/search/step_layout.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"
#include "troika/plan/simulation/summation_links.h"

namespace troika::plan {
namespace {

using layout::Cluster;

void draw_bandwidths(Cluster& cluster, Draws& draws, double unit) {
  for (const auto* hosts : {&cluster.hosts, &cluster.spares}) {
    for (const auto& host : *hosts) {
      if (draws.from(0, 2) > 0) cluster.host_bandwidths[host] = draws.from(1, 9) * unit;
    }
  }
}

double simulated(const StepModel& model, const StepPlan& plan) {
  SimulatedRun run{.plan = layout_of(model, plan), .cluster = model.problem().cluster};
  run.stages = stage_work(model.problem().profiles[0], run.plan);
  run.overlap = model.problem().profiles[0].in_step.overlap;
  return simulate_run(run).seconds;
}

// Blocks of parameters without messages, on hosts of equally many devices.
StepProblem random_replicas(Draws& draws, int devices) {
  auto problem = problem_of(std::vector<double>(2, 1), 1, 1);
  for (auto& block : problem.profiles[0].blocks) block.parameter_bytes = draws.from(3, 9) * 1e7;
  problem.cluster = Cluster::uniform(draws.from(2, 4), devices);
  problem.cluster.group = problem.cluster.host = {0, 1e12};
  problem.cluster.network = {0, 5e7};
  problem.global_batch = problem.cluster.ranks();
  return problem;
}

TEST(UnequalLinks, AveragesTakeTheTimeOfTheSimulation) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Draws draws(seed);
    auto problem = random_replicas(draws, draws.from(1, 2));
    draw_bandwidths(problem.cluster, draws, 1e7);
    const StepModel model(problem);
    const int ranks = problem.cluster.ranks();
    for (int zero = 0; zero <= 3; ++zero) {
      SCOPED_TRACE(fmt::format("seed {}, ZeRO stage {}", seed, zero));
      const auto plan = model.price({.zero_stage = zero, .devices = ranks}, {{2, ranks}});
      const double expected = simulated(model, plan);
      EXPECT_NEAR(plan.seconds, expected, 0.03 * expected);
    }
  }
}

TEST(UnequalLinks, SummationServersTakeTheTimeOfTheSimulation) {
  int unequal = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Draws draws(seed);
    auto problem = random_replicas(draws, draws.from(1, 2));
    problem.profiles[0].blocks.resize(1);
    for (int i = draws.from(0, 2); i >= 0; --i)
      problem.cluster.spares.push_back(fmt::format("s{}", i));
    draw_bandwidths(problem.cluster, draws, 1e7);
    const StepModel model(problem);
    const int ranks = problem.cluster.ranks();
    const auto plan = model.price({.devices = ranks, .sums = true}, {{1, ranks}});
    const auto layout = layout_of(model, plan);
    unequal += layout.exchange.summation.links == "measured" ? 1 : 0;
    const double expected = simulated(model, plan);
    EXPECT_NEAR(plan.seconds, expected, 1e-6 * expected) << "seed " << seed;
    // The same servers with equal parts are never faster.
    auto equal = layout;
    equal.exchange.summation.links.clear();
    SimulatedRun run{.plan = equal, .cluster = problem.cluster};
    run.stages = stage_work(problem.profiles[0], run.plan);
    EXPECT_GE(simulate_run(run).seconds, expected * (1 - 1e-9)) << "seed " << seed;
  }
  EXPECT_GT(unequal, 40);
}

TEST(UnequalLinks, PipelinesTakeTheTimeOfTheSimulation) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Draws draws(seed);
    const int stages = draws.from(2, 5), replicas = draws.from(1, 2);
    auto problem = problem_of(std::vector<double>(static_cast<size_t>(stages), 1), 1, 1);
    problem.profiles[0].splits_backward = true;
    for (auto& block : problem.profiles[0].blocks) {
      block.parameter_bytes = 0;
      block.forward = draws.from(2, 9);
      block.output_bytes = draws.from(1, 9);
    }
    problem.cluster = Cluster::uniform(stages * replicas, 1);
    problem.cluster.network = {0, 3};
    draw_bandwidths(problem.cluster, draws, 1);
    problem.global_batch = replicas * draws.from(1, 12);
    const StepModel model(problem);
    std::vector<StepStage> cut;
    for (size_t end = 1; end <= model.blocks(); ++end) cut.push_back({end, replicas});
    for (const auto family : {StepFamily::pipeline, StepFamily::zero_bubble, StepFamily::gpipe}) {
      SCOPED_TRACE(fmt::format("{}, seed {}", name(family), seed));
      const auto plan = model.price({.family = family, .devices = stages * replicas}, cut);
      const double expected = simulated(model, plan);
      if (family == StepFamily::gpipe && replicas > 1) {
        // The estimate takes each stage's slowest replica.
        EXPECT_GE(plan.seconds, expected * (1 - 1e-9));
        continue;
      }
      EXPECT_NEAR(plan.seconds, expected, 1e-9 * expected);
      if (!StepModel::is_replayed(plan.settings)) continue;
      EXPECT_LE(bound_of(model, plan), expected * (1 + 1e-9));
    }
  }
}

// One replica is replayed in place of many.
TEST(UnequalLinks, ASlowHostDelaysAPipelineOfManyReplicas) {
  auto problem = problem_of({1, 1}, 1, 64);
  for (auto& block : problem.profiles[0].blocks) block.parameter_bytes = 0;
  problem.cluster = Cluster::uniform(32, 1);
  problem.cluster.network = {0, 100};
  problem.cluster.host_bandwidths["host-7"] = 4;
  const StepModel model(problem);
  const auto plan =
      model.price({.family = StepFamily::pipeline, .devices = 32}, {{1, 16}, {2, 16}});
  EXPECT_NEAR(plan.seconds, simulated(model, plan), 1e-9);
}

TEST(UnequalLinks, EqualOnesOfHostsAreThoseOfTheLevel) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Draws draws(seed);
    auto problem = random_problem(draws);
    problem.cluster.spares = {"spare"};
    const auto plain = search_steps(StepModel(problem));
    for (const auto* hosts : {&problem.cluster.hosts, &problem.cluster.spares}) {
      for (const auto& host : *hosts) {
        problem.cluster.host_bandwidths[host] = problem.cluster.network.bandwidth;
      }
    }
    const StepModel model(problem);
    const auto own = search_steps(model);
    ASSERT_EQ(own.best.has_value(), plain.best.has_value());
    if (!own.best) continue;
    EXPECT_EQ(own.best->seconds, plain.best->seconds) << "seed " << seed;
    EXPECT_EQ(own.best->settings, plain.best->settings) << "seed " << seed;
    EXPECT_EQ(own.best->memory_bytes, plain.best->memory_bytes) << "seed " << seed;
  }
}

Cluster three_hosts() {
  auto cluster = Cluster::uniform(3, 1);
  cluster.spares = {"spare"};
  cluster.network = {0, 200};
  cluster.host_bandwidths = {{"host-2", 100}, {"spare", 50}};
  return cluster;
}

// A run measures these bandwidths, which are the links' as no server has a slow sender.
TEST(UnequalLinks, TheSplitIsThatOfRuns) {
  const auto cluster = three_hosts();
  const ClusterLinks links(cluster);
  EXPECT_EQ(measured_rates({0, 1, 2}, {3}, links), (std::vector<double>{50, 200, 200, 100}));
  const auto of_run = layout::split_by_links(layout::read_links("50,200,200,100", 3, 1), 1);
  for (const auto* asked : {"measured", "50,200,200,100"}) {
    EXPECT_EQ(summation_split(asked, {0, 1, 2}, {3}, links).shares(), of_run.shares()) << asked;
  }
  // If there are two ranks, the slow one sends all that the other one's server gets.
  EXPECT_EQ(measured_rates({1, 2}, {}, links), (std::vector<double>{100, 100}));
  auto problem = problem_of({1}, 1, 3);
  problem.cluster = cluster;
  const StepModel model(problem);
  const auto plan = model.price({.devices = 3, .sums = true}, {{1, 3}});
  EXPECT_NEAR(plan.seconds, 1 + of_run.seconds_per_byte * 1000, 1e-9);
}

TEST(UnequalLinks, WithoutABarrierServersHaveThePartsOfRuns) {
  SimulatedRun run;
  run.cluster = three_hosts();
  run.plan.mesh = layout::Mesh(layout::Axis::data, 3);
  run.plan.exchange = {.method = layout::ExchangeMethod::summation, .servers = {.count = 1}};
  auto& sums = run.plan.exchange.summation;
  sums = {.partition_bytes = 64, .cross_barrier = true};
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{1 << 16, 0}}, .parameter_bytes = 1 << 16}};
  const double equal = simulate_run(run).seconds;
  sums.links = "measured";
  const double least =
      summation_split("50,200,200,100", {0, 1, 2}, {3}, ClusterLinks(run.cluster)).seconds_per_byte;
  EXPECT_NEAR(simulate_run(run).seconds, 3 + least * (1 << 16), 0.05 * least * (1 << 16));
  EXPECT_GT(equal, simulate_run(run).seconds * 1.2);
  sums.links = "1,1";
  EXPECT_ERROR(
      simulate_run(run), ErrorKind::usage,
      "[layout] bandwidths of links; got `1,1`, expected 4 numbers with commas: of 1 spare "
      "machines, then of 3 workers; or measured");
  sums.links = "measured";
  run.cluster.network = {};
  run.cluster.host_bandwidths.erase("host-2");
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] summation.links of a simulation; got measured, and a link to the server "
               "beside rank 0 of unknown bandwidth, expected known bandwidths of all links to "
               "servers, or of none");
}

TEST(UnequalLinks, ThePublishedCostModelTakesEqualHosts) {
  auto cluster = Cluster::uniform(2, 1);
  cluster.network = {0, 200};
  cluster.host_bandwidths = {{"host-1", 100}};
  EXPECT_ERROR(machine_levels(cluster, "c.toml"), ErrorKind::usage,
               "[plan] bandwidths of hosts of c.toml; got 200 and 100, expected equal ones (or a "
               "plan by --machines)");
  cluster.host_bandwidths["host-0"] = 100;
  EXPECT_EQ(machine_levels(cluster, "c.toml").front().bandwidth, 100);
  require_links(cluster, "c.toml");
  cluster.network = {};
  require_links(cluster, "c.toml");
  cluster.host_bandwidths.erase("host-1");
  EXPECT_THROW(require_links(cluster, "c.toml"), Error);
}

}  // namespace
}  // namespace troika::plan
