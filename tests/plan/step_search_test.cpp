#include "troika/plan/search/step_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "tests/plan/random_chains.h"
#include "tests/plan/step_problem.h"
#include "tests/support/errors.h"
#include "troika/plan/search/step_layout.h"

namespace troika::plan {
namespace {

TEST(StepSearch, IsTheLeastOfAllPlansOfRandomChains) {
  int infeasible = 0, decided_by_replays = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Draws draws(seed);
    const StepModel model(random_problem(draws));
    const AllPlans all(model);
    infeasible += is_the_least(model, search_steps(model), all) ? 0 : 1;
    decided_by_replays += all.replays_decide() ? 1 : 0;
    ASSERT_FALSE(HasFailure()) << seed;
  }
  EXPECT_GT(infeasible, 100);
  EXPECT_GT(decided_by_replays, 5);
}

TEST(StepSearch, IsTheLeastOfAllPlansWithTensorAxes) {
  int infeasible = 0, cut = 0, by_tokens = 0, overlapping = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Draws draws(seed);
    auto problem = random_problem(draws);
    const StepModel model(with_cuts(std::move(problem), draws));
    const auto found = search_steps(model);
    const AllPlans all(model);
    infeasible += is_the_least(model, found, all) ? 0 : 1;
    ASSERT_FALSE(HasFailure()) << seed;
    cut += all.axis_of_fastest.tensor > 1 ? 1 : 0;
    by_tokens += all.axis_of_fastest.sequence ? 1 : 0;
    overlapping += all.fastest_overlaps ? 1 : 0;
  }
  EXPECT_GT(infeasible, 30);
  EXPECT_GT(cut, 20);
  EXPECT_GT(by_tokens, 10);
  EXPECT_GT(overlapping, 10);
}

TEST(StepSearch, IsTheLeastOfAllPlansWithContextAxes) {
  int cut = 0, both = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Draws draws(seed);
    auto problem = random_problem(draws);
    problem.profiles[0].in_step.overlap = draws.from(-2, 10) * 0.1;
    problem.global_batch = draws.from(1, 2);
    problem = with_cuts(std::move(problem), draws, /*cuts_tokens=*/true);
    if (seed % 2 == 0) {
      // Each axis has at most 2 of the ranks of a host, so that groups of 4 need both.
      problem.global_batch = 1;
      problem.cluster.devices.resize(4, problem.cluster.devices.back());
      for (auto& devices : problem.cluster.devices) devices.host = 0;
      for (auto& block : problem.profiles[0].blocks) {
        if (block.tensor) block.tensor->units = 2;
        if (block.context) block.context->tokens = 4;
      }
    }
    const StepModel model(std::move(problem));
    const auto found = search_steps(model);
    const AllPlans all(model);
    is_the_least(model, found, all);
    ASSERT_FALSE(HasFailure()) << seed;
    cut += all.axis_of_fastest.context > 1 ? 1 : 0;
    both += all.axis_of_fastest.context > 1 && all.axis_of_fastest.tensor > 1 ? 1 : 0;
  }
  EXPECT_GT(cut, 20);
  EXPECT_GT(both, 1);
}

TEST(StepSearch, KeepsToPlansThatAreAllowed) {
  auto problem = problem_of({1, 1, 1, 1}, 4, 8);
  problem.uses_all_devices = true;
  problem.allows = [](const StepSettings& settings, bool is_uneven) {
    return !is_uneven && (settings.zero_stage == 0 || settings.family == StepFamily::one_stage);
  };
  problem.one_stage_bytes = [](const StepSettings& settings) -> std::optional<DeviceBytes> {
    if (settings.zero_stage == 2) return std::nullopt;
    return DeviceBytes{.step = 7, .most = 8};
  };
  const auto found = search_steps(StepModel(problem));
  EXPECT_GT(found.alternatives.size(), 5u);
  for (const auto& plan : found.alternatives) {
    EXPECT_EQ(plan.settings.devices, 4);
    for (const auto& stage : plan.stages) EXPECT_EQ(stage.replicas, plan.stages[0].replicas);
    const bool is_cut = plan.settings.family != StepFamily::one_stage;
    EXPECT_FALSE(is_cut && plan.settings.zero_stage > 0);
    EXPECT_EQ(plan.memory_bytes[0] == 7, !is_cut && plan.settings.zero_stage != 2);
  }
  // Another search has other plans.
  problem.allows = {};
  problem.uses_all_devices = false;
  const auto all = search_steps(StepModel(problem));
  EXPECT_GT(all.alternatives.size(), found.alternatives.size());
}

TEST(StepSearch, CutsManyEqualBlocksIntoEqualStages) {
  auto problem = problem_of(std::vector<double>(66, 1.0), 22, 220);
  problem.cluster.group = {0, 1e3};
  const auto found = search_steps(StepModel(problem));
  ASSERT_TRUE(found.best.has_value());
  EXPECT_FALSE(found.is_exact);
  EXPECT_LE(found.lower_bound, found.best->seconds);
  for (const auto& plan : found.alternatives) {
    if (plan.settings.family != StepFamily::pipeline_rows) continue;
    ASSERT_EQ(plan.settings.devices, 22);
    const size_t each = 66 / plan.stages.size();
    EXPECT_EQ(plan.stages.front().end, each);
    EXPECT_EQ(plan.stages[1].end, 2 * each);
  }
}

TEST(StepSearch, SaysTheNearestPlanIfNoneFits) {
  auto problem = problem_of({1, 1, 1, 1}, 2, 2);
  problem.memory_bytes = 100;
  const auto found = search_steps(StepModel(problem));
  EXPECT_FALSE(found.best.has_value());
  ASSERT_TRUE(found.nearest.has_value());
  EXPECT_GT(found.nearest->lacking_bytes, 0);
  for (const auto& plan : found.alternatives) {
    EXPECT_GE(plan.lacking_bytes, found.nearest->lacking_bytes);
  }
}

TEST(StepSearch, PrefersTheProfileOfLeastTime) {
  auto problem = problem_of({4, 4}, 1, 2);
  problem.profiles.push_back(problem.profiles[0]);
  problem.profiles[1].precision = "bf16-mixed";
  for (auto& block : problem.profiles[1].blocks) block.forward /= 2;
  const auto found = search_steps(StepModel(problem));
  ASSERT_TRUE(found.best.has_value());
  EXPECT_EQ(found.best->settings.profile, 1);
  EXPECT_EQ(layout_of(StepModel(problem), *found.best).precision, "bf16-mixed");
  problem.profiles[1].blocks[1].name = "other";
  EXPECT_ERROR(StepModel{problem}, ErrorKind::usage,
               "[plan] block 1 of the profiles of a model; got other, expected 1");
  problem.profiles.pop_back();
  problem.global_batch = 0.5;
  EXPECT_THROW(StepModel{problem}, Error);
}

TEST(StepSearch, PrefersSimplePlansOfSimilarTime) {
  auto problem = problem_of({4, 4}, 1, 2);
  problem.profiles.push_back(problem.profiles[0]);
  problem.profiles[1].precision = "bf16-mixed";
  for (auto& block : problem.profiles[1].blocks) block.forward *= 0.96;  // 2 % less in all
  auto found = search_steps(StepModel(problem));
  EXPECT_EQ(found.best->settings.profile, 1);
  prefer_simple(found, 0.01);
  EXPECT_EQ(found.best->settings.profile, 1);
  prefer_simple(found, 0.03);
  EXPECT_EQ(found.best->settings.profile, 0);
  // The simplest plan does not fit.
  found.alternatives.front().lacking_bytes = 1;
  found.best = found.alternatives.back();
  prefer_simple(found, 10);
  EXPECT_GT(found.best->seconds, 0);
  EXPECT_LE(found.best->lacking_bytes, 0);
}

// One device of 10 bytes for the parameters, 10 for the gradients, 20 for the states and 24 for
// activations.
StepProblem tight_problem(double memory_bytes) {
  auto problem = problem_of({1, 1, 1, 1}, 1, 1);
  auto& profile = problem.profiles[0];
  profile.optimizer_factor = 2;
  for (auto& block : profile.blocks) {
    block.saved_bytes = 6;
    block.output_bytes = 6;  // so that recomputation saves nothing
    block.parameter_bytes = 2.5;
    block.workspace_bytes = 0;
  }
  problem.memory_bytes = memory_bytes;
  problem.offload = {{.optimizer = 3, .pass = 5}};
  return problem;
}

TEST(StepSearch, OffloadsWhatDoesNotFit) {
  const StepModel roomy(tight_problem(64));
  const auto whole = search_steps(roomy);
  ASSERT_TRUE(whole.best);
  EXPECT_FALSE(whole.best->settings.offloads_optimizer);
  EXPECT_FALSE(whole.best->settings.offloads_activations);
  EXPECT_EQ(whole.best->memory_bytes.front(), 64);
  const double seconds = whole.best->seconds;

  const auto states = search_steps(StepModel(tight_problem(44)));  // less than without activations
  ASSERT_TRUE(states.best);
  EXPECT_TRUE(states.best->settings.offloads_optimizer);
  EXPECT_FALSE(states.best->settings.offloads_activations);
  EXPECT_EQ(states.best->memory_bytes.front(), 44);
  EXPECT_EQ(states.best->seconds, seconds + 3);

  const auto both = search_steps(StepModel(tight_problem(32)));
  ASSERT_TRUE(both.best);
  EXPECT_TRUE(both.best->settings.offloads_optimizer);
  EXPECT_TRUE(both.best->settings.offloads_activations);
  EXPECT_EQ(both.best->memory_bytes.front(), 32) << "two blocks' activations";
  EXPECT_EQ(both.best->seconds, seconds + 8);
  EXPECT_FALSE(search_steps(StepModel(tight_problem(31))).best);

  auto without = tight_problem(44);
  without.offload.clear();
  EXPECT_FALSE(search_steps(StepModel(without)).best);
}

TEST(StepSearch, DoesNotOffloadMoreThanNeeded) {
  for (const auto& plan : search_steps(StepModel(tight_problem(64))).alternatives) {
    EXPECT_FALSE(plan.settings.offloads_optimizer || plan.settings.offloads_activations);
  }
}

// Blocks that a tensor axis cuts into parts of all their times and bytes.
StepProblem cut_problem(int devices) {
  auto problem = problem_of({4, 4, 4, 4}, devices, 4);
  problem.cuts_layers = true;
  for (auto& block : problem.profiles[0].blocks) {
    block.tensor = layout::TensorCut{.units = 4,
                                     .time_share = 0.75,
                                     .parameter_share = 1,
                                     .saved_share = 0.5,
                                     .token_time_share = 0.25,
                                     .token_saved_share = 0.5,
                                     .forward_sums = 1,
                                     .backward_sums = 1,
                                     .sum_bytes = 10};
  }
  return problem;
}

TEST(StepSearch, TriesTensorAxesWithinHosts) {
  auto problem = cut_problem(8);
  const auto axes = [&] {
    const StepModel model(problem);
    std::vector<int> ranks;
    for (const auto& axis : model.block_axes()) {
      ranks.push_back(axis.sequence ? -axis.tensor : axis.tensor);
    }
    return ranks;
  };
  EXPECT_THAT(axes(), testing::ElementsAre(1, 2, -2, 4, -4)) << "divisors of 4 units";
  problem.cluster = layout::Cluster::uniform(4, 2);
  EXPECT_THAT(axes(), testing::ElementsAre(1, 2, -2));
  problem.profiles[0].blocks[1].tensor->tokens = 3;
  EXPECT_THAT(axes(), testing::ElementsAre(1, 2));
  problem.cuts_layers = false;
  EXPECT_THAT(axes(), testing::ElementsAre(1));
}

// Alone, a device's blocks do not fit; cut over four devices, they do.
TEST(StepSearch, CutsLayersThatDoNotFit) {
  auto problem = cut_problem(4);
  problem.profiles[0].blocks.resize(1);
  problem.memory_bytes = 1000;
  const auto found = search_steps(StepModel(problem));
  ASSERT_TRUE(found.best);
  EXPECT_EQ(found.best->settings.axes.tensor, 4);
  EXPECT_FALSE(fits_whole(found));
  const auto plan = layout_of(StepModel(problem), *found.best);
  plan.verify();
  EXPECT_EQ(plan.mesh.text(), "data=1 tensor=4");
  problem.cuts_layers = false;
  EXPECT_FALSE(search_steps(StepModel(problem)).best);
}

// A better prediction of memory than the search's own takes plans out of the choice.
TEST(StepSearch, ChoosesThePlanThatFitsByTheCheck) {
  const auto search = search_steps(StepModel(problem_of({4, 4}, 2, 4)));
  ASSERT_GT(search.alternatives.size(), 2);
  auto found = search;
  prefer_simple(found, 0);
  const auto first = found.best->settings;
  std::vector<StepSettings> checked;
  const auto refuse_first = [&](StepPlan& plan) {
    checked.push_back(plan.settings);
    plan.lacking_bytes = plan.settings == first ? 7 : -1;
    plan.memory_bytes.front() = 100;
  };
  found = search;
  prefer_simple(found, 0, refuse_first);
  ASSERT_TRUE(found.best);
  EXPECT_EQ(checked.size(), 2);
  EXPECT_EQ(checked.front(), first);
  EXPECT_EQ(found.best->settings, checked.back());
  EXPECT_EQ(found.best->memory_bytes.front(), 100);
  for (const auto& plan : found.alternatives) {
    EXPECT_TRUE(plan.lacking_bytes > 0 || plan.seconds >= found.best->seconds);
  }
  found = search;
  prefer_simple(found, 0, [](StepPlan& plan) { plan.lacking_bytes = plan.seconds; });
  EXPECT_FALSE(found.best);
  ASSERT_TRUE(found.nearest);
  for (const auto& plan : found.alternatives) {
    EXPECT_GE(plan.lacking_bytes, found.nearest->lacking_bytes);
  }
}

TEST(StepLayout, MakesPlansThatAreValid) {
  const StepModel model(problem_of({1, 1, 1, 1}, 4, 8));
  const auto uneven = layout_of(
      model, model.price({.family = StepFamily::pipeline, .devices = 4}, {{3, 3}, {4, 1}}));
  uneven.verify();
  EXPECT_EQ(uneven.mesh.text(), "pipeline=2 data=3-1");
  EXPECT_EQ(uneven.stages.cut, "0,1,2|3");
  // Four micro-batches are in flight before the first one comes back.
  EXPECT_THAT(uneven.actions, testing::StartsWith("0F0 0F1 0F2 0F3 0B0 0F4 0B1"));
  const auto rows = layout_of(
      model, model.price({.family = StepFamily::pipeline_rows, .devices = 4}, {{2, 2}, {4, 2}}));
  rows.verify();
  EXPECT_EQ(rows.mesh.text(), "data=2 pipeline=2");
  EXPECT_EQ(rows.schedule, "1f1b");
  EXPECT_EQ(rows.micro_batches, 4);
  const auto sharded =
      layout_of(model, model.price({.recompute = true, .zero_stage = 2, .devices = 4}, {{4, 4}}));
  sharded.verify();
  EXPECT_EQ(sharded.exchange.zero_stage, 2);
  EXPECT_EQ(sharded.recompute, "full");
  EXPECT_EQ(sharded.stages.cut, "0,1,2,3") << "the blocks of the plan's model";
}

TEST(StepLayout, MakesPlansWithTensorAxes) {
  const StepModel model(cut_problem(8));
  const StepSettings cut{.devices = 8, .axes = {.tensor = 2}};
  const auto made = [&](StepFamily family, int zero, const std::vector<StepStage>& stages) {
    auto settings = cut;
    settings.family = family;
    settings.zero_stage = zero;
    auto plan = layout_of(model, model.price(settings, stages));
    plan.verify();
    return plan;
  };
  const auto tensor = made(StepFamily::one_stage, 0, {{4, 4}});
  EXPECT_EQ(tensor.mesh.text(), "data=4 tensor=2");
  EXPECT_EQ(tensor.schedule, layout::kOneStageSchedule);
  const auto sharded = made(StepFamily::one_stage, 1, {{4, 4}});
  EXPECT_EQ(sharded.mesh.text(), "pipeline=1 data=4 tensor=2");
  EXPECT_EQ(sharded.schedule, "1f1b");
  EXPECT_EQ(made(StepFamily::zero_bubble, 0, {{2, 2}, {4, 2}}).mesh.text(),
            "pipeline=2 data=2 tensor=2");
  EXPECT_EQ(made(StepFamily::pipeline_rows, 0, {{2, 2}, {4, 2}}).mesh.text(),
            "data=2 pipeline=2 tensor=2");
}

// Also if the number of devices does not divide the number of micro-batches.
TEST(StepLayout, TrainsTheBatchThatWasAsked) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Draws draws(seed);
    auto problem = random_problem(draws);
    if (seed % 2 == 0) problem = with_cuts(std::move(problem), draws);
    const StepModel model(std::move(problem));
    const auto found = search_steps(model);
    const auto& plan = found.best ? found.best : found.nearest;
    ASSERT_TRUE(plan) << seed;
    const auto layout = layout_of(model, *plan);
    const int sharing = layout.mesh.has_uneven_stages() ? 1 : layout.mesh.size(layout::Axis::data);
    EXPECT_EQ(layout.micro_batches * sharing, model.micro_batches(plan->settings.profile)) << seed;
    EXPECT_EQ(layout.mesh.ranks(), plan->settings.devices) << seed;
  }
}

}  // namespace
}  // namespace troika::plan
