// The search with forward passes that take turns over a tensor axis, against the simulation and
// against all plans.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/plan/cut_runs.h"
#include "tests/plan/random_chains.h"
#include "tests/plan/step_problem.h"
#include "troika/plan/search/step_layout.h"

namespace troika::plan {
namespace {

// A problem with blocks that a tensor axis cuts, on one or two groups of devices. Averages of
// gradients, which both price differently, take no time.
StepProblem random_overlap(Draws& draws, int groups, int tensor) {
  auto problem = with_cuts(random_problem(draws), draws);
  problem.straight = false;
  problem.memory_bytes.reset();
  problem.cluster.hosts.clear();
  problem.cluster.devices.clear();
  for (int i = 0; i < groups; ++i) {
    problem.cluster.hosts.push_back(std::to_string(i));
    problem.cluster.devices.push_back(
        {.host = i, .count = tensor, .flops = draws.from(3, 5) * 1.0});
  }
  auto& profile = problem.profiles[0];
  profile.in_step = {.overlap = draws.from(-1, 4) * 0.25,
                     .first_micro_batch_factor = 1 + draws.from(0, 4) * 0.25,
                     .batches = {.bytes = draws.from(0, 9) * 1.0, .prefetched = 2}};
  for (auto& block : profile.blocks) {
    if (groups > 1) block.parameter_bytes = 0;
    if (block.tensor) block.tensor->units = 12;
  }
  if (!profile.blocks[0].tensor) profile.blocks[0].tensor = layout::TensorCut{.units = 12};
  if (!profile.takes_time()) profile.blocks[0].forward = 1;
  problem.global_batch = groups * draws.from(2, 7);
  return problem;
}

TEST(TensorOverlap, SearchAndSimulationTakeTheSameTime) {
  int hides = 0, counted = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Draws draws(seed);
    const int groups = draws.from(1, 2), tensor = draws.from(2, 4);
    const auto problem = random_overlap(draws, groups, tensor);
    const StepModel model(problem);
    for (const auto& axes : model.block_axes()) {
      if (axes.tensor != tensor) continue;
      for (const int choice : {0, 1, 2}) {
        const bool recompute = choice == 1;
        StepSettings settings{.recompute = recompute,
                              .zero_stage = choice == 2 && groups > 1 ? 1 : 0,
                              .devices = groups * tensor,
                              .axes = axes,
                              .tensor_overlap = true};
        const std::vector<StepStage> stages{{model.blocks(), groups}};
        SCOPED_TRACE(fmt::format("seed {}, {} groups of {}, sequence {}, recompute {}, zero{}",
                                 seed, groups, tensor, axes.sequence, recompute,
                                 settings.zero_stage));
        const auto compared = [&] {
          const auto priced = model.price(settings, stages);
          auto run = run_of(problem.profiles[0], layout_of(model, priced), problem.cluster);
          run.overlap = problem.profiles[0].in_step.overlap;
          run.reference_flops = problem.profiles[0].device_flops;
          const auto simulated = simulate_run(run);
          EXPECT_NEAR(priced.seconds, simulated.seconds, 1e-9 * priced.seconds);
          EXPECT_NEAR(priced.memory_bytes[0], simulated.ranks[0].peak_bytes,
                      1e-9 * priced.memory_bytes[0]);
          EXPECT_LE(model.lower_bound(), priced.seconds * (1 + 1e-9));
          return priced;
        };
        const auto priced = compared();
        settings.tensor_overlap = false;
        const auto without = compared();
        EXPECT_GE(priced.memory_bytes[0], without.memory_bytes[0]);
        hides += priced.seconds < without.seconds * (1 - 1e-9) ? 1 : 0;
        ++counted;
      }
    }
    ASSERT_FALSE(HasFailure()) << seed;
  }
  EXPECT_GT(counted, 400);
  EXPECT_GT(hides, 100);
}

// Pipelines of 2 to 4 stages, each device's group on a host of its own, so that messages and sums
// have links of their own. Passes of replicas take equally long.
StepProblem random_pipeline(Draws& draws, int stages, int replicas, int tensor) {
  auto problem = random_overlap(draws, stages * replicas, tensor);
  auto& profile = problem.profiles[0];
  const auto some = profile.blocks;
  while (profile.blocks.size() < static_cast<size_t>(stages)) {
    profile.blocks.push_back(some[profile.blocks.size() % some.size()]);
  }
  profile.splits_backward = true;
  const bool has_messages = draws.from(0, 1) == 0;
  for (size_t i = 0; i < profile.blocks.size(); ++i) {
    auto& block = profile.blocks[i];
    block.name = std::to_string(i);
    block.forward += 1;
    block.parameter_bytes = replicas == 1 ? draws.from(1, 30) : 0;
    block.output_bytes = has_messages ? draws.from(1, 9) : 0;
    block.has_output_layer = i + 1 == profile.blocks.size() && draws.from(0, 1) == 0;
    if (block.tensor) block.tensor->cuts_output = false;
  }
  problem.cluster.network = {draws.from(0, 2) * 0.5, draws.from(1, 5) * 4.0};
  if (replicas > 1) {
    for (auto& devices : problem.cluster.devices) devices.flops = 4;
  }
  problem.global_batch = replicas * draws.from(2, 4 * stages + 3);
  return problem;
}

TEST(TensorOverlap, SearchAndSimulationTakeTheSameTimeInPipelines) {
  int hides = 0, counted = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Draws draws(seed);
    const int stages = draws.from(2, 4), replicas = draws.from(1, 2), tensor = draws.from(2, 3);
    const auto problem = random_pipeline(draws, stages, replicas, tensor);
    const auto& profile = problem.profiles[0];
    const StepModel model(problem);
    std::vector<StepStage> cut;
    for (int end = 1; end <= stages; ++end) {
      cut.push_back({end == stages ? model.blocks() : static_cast<size_t>(end), replicas});
    }
    for (const auto& axes : model.block_axes()) {
      if (axes.tensor != tensor) continue;
      for (const auto family : {StepFamily::pipeline, StepFamily::pipeline_rows,
                                StepFamily::zero_bubble, StepFamily::gpipe}) {
        for (const bool recompute : {false, true}) {
          StepSettings settings{.recompute = recompute,
                                .family = family,
                                .devices = stages * replicas * tensor,
                                .axes = axes,
                                .tensor_overlap = true};
          const auto priced = model.price(settings, cut);
          auto run = run_of(profile, layout_of(model, priced), problem.cluster);
          run.overlap = profile.in_step.overlap;
          run.reference_flops = profile.device_flops;
          const auto simulated = simulate_run(run);
          SCOPED_TRACE(
              fmt::format("seed {}, {}, {} stages of {} groups of {}, sequence {}, "
                          "recompute {}, {} micro-batches",
                          seed, name(family), stages, replicas, tensor, axes.sequence, recompute,
                          run.plan.micro_batches));
          EXPECT_NEAR(priced.seconds, simulated.seconds, 1e-9 * priced.seconds);
          EXPECT_LE(bound_of(model, priced), priced.seconds * (1 + 1e-9));
          EXPECT_LE(model.lower_bound(), priced.seconds * (1 + 1e-9));
          settings.tensor_overlap = false;
          const auto without = model.price(settings, cut);
          hides += priced.seconds < without.seconds * (1 - 1e-9) ? 1 : 0;
          for (int stage = 0; stage < stages; ++stage, ++counted) {
            const auto index = static_cast<size_t>(stage);
            EXPECT_GE(priced.memory_bytes[index], without.memory_bytes[index]);
            if (profile.blocks[0].output_bytes > 0) continue;  // messages may wait for a pass
            const auto rank = run.plan.mesh.group(0, {layout::Axis::pipeline})[index];
            EXPECT_NEAR(priced.memory_bytes[index],
                        simulated.ranks[static_cast<size_t>(rank)].peak_bytes,
                        1e-9 * priced.memory_bytes[index])
                << stage;
          }
        }
      }
    }
    ASSERT_FALSE(HasFailure()) << seed;
  }
  EXPECT_GT(counted, 500);
  EXPECT_GT(hides, 100);
}

// Pipelines of two groups of two devices each.
TEST(TensorOverlap, TheSearchFindsTheLeastPipeline) {
  int overlapping = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Draws draws(seed);
    auto problem = with_cuts(random_problem(draws), draws);
    problem.straight = false;
    problem.global_batch = draws.from(8, 40);
    problem.cluster.devices.resize(4, problem.cluster.devices.back());
    problem.cluster.hosts = {"0", "1"};
    for (int i = 0; i < 4; ++i) problem.cluster.devices[static_cast<size_t>(i)].host = i / 2;
    problem.cluster.group.bandwidth = draws.from(1, 3);
    for (auto& devices : problem.cluster.devices) devices.memory_bytes = 0;
    auto& blocks = problem.profiles[0].blocks;
    blocks.resize(4, blocks.back());
    if (!blocks[0].tensor) blocks[0].tensor = layout::TensorCut{};
    double parameters = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].name = std::to_string(i);
      blocks[i].forward += 1;
      blocks[i].backward_input = blocks[i].backward_weight = 1;
      blocks[i].saved_bytes = draws.from(1, 5);
      if (blocks[i].tensor) {
        blocks[i].tensor->units = 2;
        blocks[i].tensor->forward_sums = 2;
        blocks[i].tensor->sum_bytes = 4;
      }
      parameters += blocks[i].parameter_bytes;
    }
    problem.memory_bytes = 60 + parameters * draws.from(1, 4);
    problem.allows = [](const StepSettings& settings, bool) {
      return settings.axes.tensor == 2 && settings.family != StepFamily::one_stage;
    };
    const StepModel model(std::move(problem));
    const auto found = search_steps(model);
    const AllPlans all(model);
    is_the_least(model, found, all);
    ASSERT_FALSE(HasFailure()) << seed;
    overlapping += all.fastest_overlaps ? 1 : 0;
  }
  EXPECT_GT(overlapping, 10);
}

// Two micro-batches at once, unless the second one does not fit, or there is only one.
TEST(TensorOverlap, IsChosenWhereTheSecondPassFits) {
  auto problem = problem_of({4}, 2, 4);
  problem.cuts_layers = true;
  problem.memory_bytes = 1100;  // 1000 for the parameters, 50 for the activations of each
  problem.profiles[0].blocks[0].tensor = layout::TensorCut{.units = 4,
                                                           .time_share = 0.75,
                                                           .parameter_share = 1,
                                                           .saved_share = 1,
                                                           .forward_sums = 1,
                                                           .backward_sums = 1,
                                                           .sum_bytes = 10};
  const auto best = [&] {
    const StepModel model(problem);
    auto plan = layout_of(model, search_steps(model).best.value());
    plan.verify();
    return plan;
  };
  EXPECT_TRUE(best().stages.tensor_overlap);
  EXPECT_THAT(best().text(), testing::HasSubstr("tensor_overlap = true"));
  problem.memory_bytes = 1099;
  EXPECT_FALSE(best().stages.tensor_overlap);
  problem.memory_bytes = 1100;
  problem.global_batch = 1;
  EXPECT_FALSE(best().stages.tensor_overlap);
}

}  // namespace
}  // namespace troika::plan
