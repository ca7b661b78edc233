// The cost model against the simulation of the same plans.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "tests/plan/random_chains.h"
#include "tests/plan/step_problem.h"
#include "troika/plan/search/step_layout.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"

namespace troika::plan {
namespace {

constexpr std::array kFamilies{StepFamily::pipeline, StepFamily::zero_bubble, StepFamily::gpipe};

// A block for each stage.
StepPlan priced(const StepModel& model, StepFamily family, int replicas) {
  std::vector<StepStage> stages;
  for (size_t end = 1; end <= model.blocks(); ++end) stages.push_back({end, replicas});
  return model.price({.family = family, .devices = model.problem().cluster.ranks()}, stages);
}

RunSimulation simulation_of(const StepModel& model, const StepPlan& plan) {
  const auto& profile = model.problem().profiles[0];
  SimulatedRun run{.plan = layout_of(model, plan), .cluster = model.problem().cluster};
  run.stages = stage_work(profile, run.plan);
  return simulate_run(run);
}

double simulated(const StepModel& model, const StepPlan& plan) {
  return simulation_of(model, plan).seconds;
}

// Pipelines of 2 to 8 stages with one or two replicas, each device on a host of its own or all on
// one host. A message takes up to `longest` times the mean time of a pass.
StepProblem random_pipeline(Draws& draws, bool is_equal, double longest) {
  const int stages = draws.from(2, 8), replicas = draws.from(0, 2) == 0 ? 2 : 1;
  StepProblem problem = problem_of(std::vector<double>(static_cast<size_t>(stages), 1), 1, 1);
  auto& profile = problem.profiles[0];
  profile.splits_backward = true;
  const auto seconds = [&] { return draws.from(2, 9) * 1.0; };
  for (auto& block : profile.blocks) {
    block.forward = seconds();
    block.backward_input = seconds();
    block.backward_weight = seconds();
    block.output_bytes = seconds();
    block.parameter_bytes = 0;
    if (is_equal) block = profile.blocks.front();
  }
  for (size_t i = 0; i < profile.blocks.size(); ++i) profile.blocks[i].name = std::to_string(i);
  profile.blocks.back().has_output_layer = draws.from(0, 1) == 0;
  const int ranks = stages * replicas;
  const bool apart = draws.from(0, 1) == 0;
  problem.cluster = layout::Cluster::uniform(apart ? ranks : 1, apart ? 1 : ranks);
  const double bandwidth = draws.from(1, 5) * 9 / (16.5 * longest);
  problem.cluster.network = problem.cluster.group = {0, bandwidth};
  problem.global_batch = replicas * draws.from(1, 6 * stages);
  return problem;
}

// Also for messages that are as long as passes, and share ports at times.
TEST(PredictedSteps, AreThoseOfTheSimulation) {
  for (const double longest : {0.3, 1.0}) {
    for (const bool is_equal : {true, false}) {
      for (uint64_t seed = 0; seed < 75; ++seed) {
        Draws draws(seed);
        const StepModel model(random_pipeline(draws, is_equal, longest));
        const int replicas = model.problem().cluster.ranks() / static_cast<int>(model.blocks());
        for (const auto family : kFamilies) {
          const auto plan = priced(model, family, replicas);
          const double expected = simulated(model, plan);
          ASSERT_NEAR(plan.seconds, expected, 1e-9 * expected) << name(family) << ", seed " << seed;
          if (!StepModel::is_replayed(plan.settings)) continue;
          ASSERT_LE(bound_of(model, plan), expected * (1 + 1e-9)) << name(family) << seed;
        }
      }
    }
  }
}

// The replicas of a stage share its micro-batches.
TEST(PredictedSteps, AreThoseOfTheSimulationForUnevenStages) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Draws draws(seed);
    auto problem = random_pipeline(draws, false, 1);
    std::vector<StepStage> stages;
    int devices = 0;
    for (size_t end = 1; end <= problem.profiles[0].blocks.size(); ++end) {
      stages.push_back({end, draws.from(1, 3)});
      devices += stages.back().replicas;
    }
    stages.back().replicas = stages.front().replicas % 3 + 1;
    devices = 0;
    for (const auto& stage : stages) devices += stage.replicas;
    const auto links = problem.cluster;
    problem.cluster = layout::Cluster::uniform(devices, 1);
    problem.cluster.network = links.network;
    const StepModel model(problem);
    const auto plan = model.price({.family = StepFamily::pipeline, .devices = devices}, stages);
    const double expected = simulated(model, plan);
    ASSERT_NEAR(plan.seconds, expected, 1e-9 * expected) << "seed " << seed;
    ASSERT_LE(bound_of(model, plan), expected * (1 + 1e-9)) << "seed " << seed;
  }
}

// Messages take 0.03 s, beside passes of 0.06 s. Only gpipe does not wait for round trips.
TEST(PredictedSteps, ChargesRoundTripsOfLongMessages) {
  auto problem = problem_of(std::vector<double>(6, 0.06), 1, 48);
  problem.profiles[0].splits_backward = true;
  problem.cluster = layout::Cluster::uniform(6, 1);
  problem.cluster.network = {0, 1e9};
  for (auto& block : problem.profiles[0].blocks) {
    block.forward = block.backward_input = block.backward_weight = 0.02;
    block.output_bytes = 3e7;
    block.parameter_bytes = 0;
  }
  const StepModel model(problem);
  const auto ratio = [&](StepFamily family) {
    const auto plan = priced(model, family, 1);
    return plan.seconds / simulated(model, plan);
  };
  for (const auto family : kFamilies) EXPECT_NEAR(ratio(family), 1, 1e-9) << name(family);
}

// The planner and the simulator count the same bytes, except for the messages that wait for a pass.
TEST(PredictedMemory, IsThatOfTheSimulation) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Draws draws(seed);
    const int blocks = draws.from(1, 8), stages = draws.from(1, std::min(4, blocks));
    auto problem = problem_of(std::vector<double>(static_cast<size_t>(blocks), 1), 1, 1);
    auto& profile = problem.profiles[0];
    profile.splits_backward = true;
    profile.optimizer_factor = draws.from(0, 2);
    for (auto& block : profile.blocks) {
      block.output_bytes = stages == 1 ? draws.from(1, 9) : 0;
      block.saved_bytes = draws.from(5, 50);
      block.parameter_bytes = draws.from(1, 50);
      block.workspace_bytes = draws.from(0, 20);
      block.in_stage = {.sent_workspace_bytes = static_cast<double>(draws.from(0, 20)),
                        .weight_workspace_bytes = static_cast<double>(draws.from(0, 20)),
                        .weight_output_bytes = static_cast<double>(draws.from(0, 9)),
                        .weight_gradient_bytes = static_cast<double>(draws.from(0, 9)),
                        .input_workspace_bytes = static_cast<double>(draws.from(0, 40))};
    }
    profile.blocks.back().has_output_layer = draws.from(0, 1) == 0;
    const int replicas = draws.from(1, 2);
    problem.cluster = layout::Cluster::uniform(stages * replicas, 1);
    problem.cluster.network = {0, 1e3};
    problem.global_batch = replicas * draws.from(1, 12);
    const StepModel model(problem);
    std::vector<StepStage> cut;
    for (int end = 1; end <= stages; ++end) {
      cut.push_back({static_cast<size_t>(end == stages ? blocks : end), replicas});
    }
    auto families = std::vector<StepFamily>(kFamilies.begin(), kFamilies.end());
    if (stages == 1) families = {StepFamily::one_stage};
    for (const auto family : families) {
      for (const bool recompute : {false, true}) {
        for (int zero = 0; zero <= (replicas == 1 ? 0 : stages == 1 ? 3 : 1); ++zero) {
          const auto plan = model.price({.recompute = recompute,
                                         .zero_stage = zero,
                                         .family = family,
                                         .devices = stages * replicas},
                                        cut);
          SimulatedRun run{.plan = layout_of(model, plan), .cluster = problem.cluster};
          run.stages = stage_work(profile, run.plan);
          const auto found = simulate_run(run);
          for (size_t stage = 0; stage < cut.size(); ++stage, ++compared) {
            ASSERT_NEAR(plan.memory_bytes[stage],
                        found.ranks[stage * static_cast<size_t>(replicas)].peak_bytes, 1e-6)
                << name(family) << ", zero" << zero << ", stage " << stage << ", seed " << seed;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 300);
}

// A weight part that is put off keeps the message with its gradient.
TEST(PredictedMemory, WeightPartsKeepTheGradientOfTheOutput) {
  const auto bytes = [](double kept) {
    auto problem = problem_of(std::vector<double>(3, 1), 3, 6);
    problem.profiles[0].splits_backward = true;
    for (auto& block : problem.profiles[0].blocks) {
      block.output_bytes = 7;
      block.saved_bytes = 100;
      block.parameter_bytes = 10;
      block.in_stage.weight_output_bytes = kept;
    }
    const StepModel model(problem);
    const auto plan =
        model.price({.family = StepFamily::zero_bubble, .devices = 3}, {{1, 1}, {2, 1}, {3, 1}});
    return std::pair(plan.memory_bytes[1], simulation_of(model, plan).ranks[1].peak_bytes);
  };
  const auto with = bytes(7), without = bytes(0);
  EXPECT_EQ(with.first - without.first, 7);
  EXPECT_EQ(with.second - without.second, 7);
}

}  // namespace
}  // namespace troika::plan
