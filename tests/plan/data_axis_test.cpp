// The search prices exchanges along the data axis as the simulation does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/random_chains.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"

namespace troika::plan {
namespace {

// A chain of blocks whose gradients fill one bucket each, on equal hosts.
StepProblem random_replicas(Draws& draws) {
  StepProblem problem;
  layout::Profile profile;
  profile.in_step.overlap = draws.from(0, 4) * 0.25;
  const int blocks = draws.from(1, 6);
  for (int i = 0; i < blocks; ++i) {
    profile.blocks.push_back({.name = std::to_string(i),
                              .forward = draws.from(1, 9) * 0.1,
                              .backward_input = draws.from(1, 9) * 0.1,
                              .backward_weight = draws.from(0, 9) * 0.1,
                              .parameter_bytes = draws.from(3, 20) * 1e7});
  }
  problem.profiles.push_back(profile);
  problem.cluster = layout::Cluster::uniform(draws.from(1, 3), draws.from(1, 4));
  problem.cluster.group = {draws.from(0, 2) * 1e-3, draws.from(1, 30) * 1e8};
  problem.cluster.host = problem.cluster.group;
  problem.cluster.network = {draws.from(0, 2) * 1e-3, draws.from(1, 30) * 1e8};
  problem.global_batch = problem.cluster.ranks();
  return problem;
}

double simulated_seconds(const StepProblem& problem, int zero_stage) {
  SimulatedRun run;
  auto& exchange = run.plan.exchange;
  const int ranks = problem.cluster.ranks();
  run.plan.mesh = layout::Mesh::parse("data=" + std::to_string(ranks), ranks);
  if (zero_stage > 0) exchange.method = layout::ExchangeMethod::zero;
  exchange.zero_stage = zero_stage;
  run.stages = stage_work(problem.profiles[0], run.plan);
  run.cluster = problem.cluster;
  run.overlap = problem.profiles[0].in_step.overlap;
  return simulate_run(run).seconds;
}

TEST(DataAxis, SearchAndSimulationTakeTheSameTime) {
  for (int seed = 0; seed < 300; ++seed) {
    Draws draws(static_cast<uint64_t>(seed));
    const auto problem = random_replicas(draws);
    const int ranks = problem.cluster.ranks();
    const StepModel model(problem);
    for (int zero = 0; zero <= 3; ++zero) {
      const auto found =
          model.price({.zero_stage = zero, .devices = ranks}, {{model.blocks(), ranks}});
      const double simulated = simulated_seconds(problem, zero);
      SCOPED_TRACE(fmt::format("seed {}, ZeRO stage {}, {} hosts, {} ranks", seed, zero,
                               problem.cluster.hosts.size(), ranks));
      // Algorithms of all-reduces other than rings and those by levels take different times, and
      // the search charges latencies once for all buckets.
      EXPECT_LE(found.seconds, simulated * 1.003);
      EXPECT_GE(found.seconds, simulated * 0.97);
    }
  }
}

// The first stage's replicas share its states; the only replica of the second one has all of its.
TEST(DataAxis, AStageIsSharedByItsOwnReplicas) {
  StepProblem problem;
  problem.profiles.push_back({.optimizer_factor = 2, .optimizer_bytes_per_second = 100});
  for (const auto* name : {"a", "b"}) {
    problem.profiles[0].blocks.push_back({.name = name,
                                          .forward = 1,
                                          .backward_input = 1,
                                          .backward_weight = 1,
                                          .parameter_bytes = 600});
  }
  SimulatedRun run;
  auto& plan = run.plan;
  plan.mesh = layout::Mesh::parse("pipeline=2 data=2-1", 3);
  plan.schedule = "1f1b";
  plan.micro_batches = 2;
  plan.exchange.method = layout::ExchangeMethod::zero;
  plan.exchange.zero_stage = 1;
  run.stages = stage_work(problem.profiles[0], plan);
  run.cluster = layout::Cluster::uniform(1, 3);
  const auto zero = simulate_run(run);
  const auto memory = [&] {
    std::vector<double> bytes;
    for (const auto& stage : run.stages) bytes.push_back(stage.resident_bytes);
    return bytes;
  };
  const auto shared = memory();
  plan.exchange = {};
  run.stages = stage_work(problem.profiles[0], plan);
  EXPECT_LT(shared[0], memory()[0]);
  EXPECT_EQ(shared[1], memory()[1]);
  EXPECT_EQ(zero.ranks[2].compute_seconds, simulate_run(run).ranks[2].compute_seconds);
  EXPECT_EQ(zero.ranks[0].compute_seconds, simulate_run(run).ranks[0].compute_seconds - 3);
}

}  // namespace
}  // namespace troika::plan
