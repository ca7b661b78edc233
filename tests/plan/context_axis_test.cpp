// Plans with a context axis: the work of a rank, and steps against times computed by hand.
#include <gmock/gmock.h>

#include <numeric>
#include <utility>

#include "tests/plan/cut_runs.h"
#include "tests/support/errors.h"
#include "troika/layout/context_shard.h"
#include "troika/plan/search/step_layout.h"
#include "troika/plan/search/step_search.h"
#include "troika/plan/simulation/sweep.h"

namespace troika::plan {
namespace {

using layout::Cluster;
using layout::ContextRounds;
using layout::Mesh;
using layout::Profile;

// Four blocks of 24 tokens that spend a quarter of their times on attention. Ranks divide all of
// the times, half of the workspace, and keep 480 bytes together.
Profile blocks_of_tokens() {
  auto profile = equal_blocks();
  for (auto& block : profile.blocks) {
    block.context = layout::ContextCut{.tokens = 24,
                                       .heads = 6,
                                       .time_share = 1,
                                       .workspace_share = 0.5,
                                       .saved_bytes = 480,
                                       .attention_share = 0.25,
                                       .pair_bytes = 240,
                                       .pair_gradient_bytes = 480,
                                       .exchanges = 4,
                                       .exchanged_bytes = 480};
  }
  return profile;
}

Profile cut_twice() {
  return with_tensor_cuts(blocks_of_tokens(), 24);
}

layout::Plan context_plan(const std::string& mesh, std::string schedule = "one_stage",
                          int micro_batches = 1, std::string method = "ring") {
  layout::Plan plan;
  plan.mesh = Mesh::parse(mesh);
  plan.stages.context_method = std::move(method);
  plan.schedule = std::move(schedule);
  plan.micro_batches = micro_batches;
  return plan;
}

TEST(ContextAxis, DividesTheTokensOfAStage) {
  const auto stages =
      stage_work(blocks_of_tokens(), context_plan("pipeline=2 context=4", "1f1b", 4));
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].passes, (layout::StageTimes{2, 2, 2}));
  EXPECT_EQ(stages[0].parameter_bytes, 2000) << "every rank has all weights";
  EXPECT_EQ(stages[0].gradient_bytes, 0) << "buffers for the average stay";
  EXPECT_EQ(stages[0].activation_bytes, 2 * 120);
  EXPECT_NEAR(stages[0].weight_part_bytes, 2 * 0.5 * 800 / 4, 1e-9) << "all but attention's";
  EXPECT_EQ(stages[0].workspace_bytes, 25);
  EXPECT_EQ(stages[0].output_bytes, 20);
  // Two blocks. Attention takes a quarter of a pass of 1 s, a quarter of it beside each message.
  EXPECT_EQ(stages[0].forward_rounds, (std::vector<ContextRounds>{{2 * 3, 60, 0.0625}}));
  EXPECT_EQ(
      stages[0].backward_rounds,
      (std::vector<ContextRounds>{{2, 60, 0.125}, {4, 180, 0.125}, {2, 120, 0.125}, {2, 120, 0}}));
}

// As docs/context-parallelism.md counts the bytes of a ring: 2 (c - 1) / c b s h forward and
// backward, and 2 b s h of gradients; for all-to-alls of 4 b s h elements, 4 (c - 1) / c^2 b s h.
TEST(ContextAxis, SendsTheBytesOfAttention) {
  const auto bytes = [](const std::vector<ContextRounds>& rounds) {
    return std::accumulate(rounds.begin(), rounds.end(), 0.0, [](double sum, const auto& round) {
      return sum + round.count * round.bytes;
    });
  };
  const auto block = blocks_of_tokens().blocks[0];
  for (const int c : {2, 3, 4, 6}) {
    using layout::ContextMethod;
    EXPECT_NEAR(bytes(layout::forward_rounds(block, c, ContextMethod::ring)), 240.0 * (c - 1) / c,
                1e-9);
    EXPECT_NEAR(bytes(layout::backward_rounds(block, c, ContextMethod::ring)),
                240.0 * (c - 1) / c + 480, 1e-9);
    const auto exchanged = layout::forward_rounds(block, c, ContextMethod::all_to_all);
    EXPECT_NEAR(bytes(exchanged), 480.0 * (c - 1) / c / c, 1e-9);
    EXPECT_EQ(layout::backward_rounds(block, c, ContextMethod::all_to_all), exchanged);
  }
}

TEST(ContextAxis, RecomputationSendsAgain) {
  auto plan = context_plan("context=2");
  plan.recompute = "full";
  const auto work = stage_work(blocks_of_tokens(), plan)[0];
  EXPECT_EQ(work.forward_rounds, (std::vector<ContextRounds>{{4, 120, 0.25}}));
  EXPECT_EQ(work.backward_rounds, (std::vector<ContextRounds>{
                                      {4, 120, 0.25}, {4, 120, 0.5}, {4, 240, 0.5}, {4, 240, 0}}));
}

TEST(ContextAxis, ExposesWhatAttentionDoesNotHide) {
  auto run = run_of(blocks_of_tokens(), context_plan("context=2"), hosts(1, 2));
  run.stages[0].buckets.clear();
  const double computes = 4 * 12 / 2.0;
  const auto message = [](double bytes) { return 0.01 + bytes / 100; };
  const double forward = 4 * (message(120) - 0.25);
  const double backward = 4 * (message(120) - 0.5 + message(240) - 0.5 + message(240));
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, computes + forward + backward, 1e-9);
  EXPECT_NEAR(simulation.ranks[1].exposed_seconds, forward + backward, 1e-9);
  run.overlap = 0;
  const double all = 4 * (2 * message(120) + 2 * message(240));
  EXPECT_NEAR(simulate_run(run).seconds, computes + all, 1e-9);
  // On slower devices, attention hides more.
  run.overlap = 1;
  run.cluster.devices[0].flops = 1;
  run.reference_flops = 2;
  EXPECT_NEAR(
      simulate_run(run).seconds,
      2 * computes + 4 * (message(120) - 0.5 + message(120) - 1 + message(240) - 1 + message(240)),
      1e-9);
}

TEST(ContextAxis, AllToAllsAreNotHidden) {
  auto run = run_of(blocks_of_tokens(), context_plan("context=3", "one_stage", 1, "all_to_all"),
                    hosts(1, 3));
  run.stages[0].buckets.clear();
  // Four exchanges of 480 / 4 / 3 bytes in each pass, of which two thirds leave a rank.
  const double exchange = 2 * 0.01 + 480 / 4 / 3.0 * 2 / 3 / 100;
  EXPECT_NEAR(simulate_run(run).seconds, 4 * 12 / 3.0 + 4 * 8 * exchange, 1e-9);
}

// All ranks of a data and a context axis average gradients together, and share ZeRO's states.
TEST(ContextAxis, AveragesWithTheDataAxis) {
  auto run = run_of(blocks_of_tokens(), context_plan("data=2 context=2"), hosts(1, 4));
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{.bytes = 400}}, .parameter_bytes = 400}};
  EXPECT_NEAR(simulate_run(run).seconds, 3 + 2 * 3 * (0.01 + 100 / 100.0), 1e-9);
  auto plan = context_plan("data=2 context=2");
  plan.exchange.method = layout::ExchangeMethod::zero;
  plan.exchange.zero_stage = 1;
  const double whole = stage_work(blocks_of_tokens(), context_plan("context=4"))[0].resident_bytes;
  EXPECT_NEAR(whole - stage_work(blocks_of_tokens(), plan)[0].resident_bytes, 8000 * 3 / 4.0, 1e-9);
}

TEST(ContextAxis, ATensorAxisDividesTheHeads) {
  auto plan = context_plan("context=2 tensor=2");
  const auto work = stage_work(cut_twice(), plan)[0];
  // A tensor axis divides three quarters of 2 s.
  EXPECT_NEAR(work.passes.forward, 4 * 2 * (0.25 + 0.75 / 2), 1e-9);
  ASSERT_EQ(work.forward_rounds.size(), 1u);
  EXPECT_EQ(work.forward_rounds[0].count, 4);
  EXPECT_EQ(work.forward_rounds[0].bytes, 60);
  EXPECT_NEAR(work.forward_rounds[0].beside, 2 * 0.25 / 2 / 2, 1e-12);
  EXPECT_EQ(work.forward_sums, (std::vector<TensorSums>{{8, 40}})) << "sums of half the tokens";
  auto run = run_of(cut_twice(), plan, hosts(1, 4));
  run.stages[0].buckets.clear();
  run.overlap = 0;
  const double sums = 20 * 2 * (0.01 + 40 / 2 / 100.0);
  const double rings = 4 * (2 * (0.01 + 60 / 100.0) + 2 * (0.01 + 120 / 100.0));
  EXPECT_NEAR(simulate_run(run).seconds, 4 * 6 * (0.25 + 0.75 / 2) + sums + rings, 1e-9);
}

TEST(ContextAxis, AnAxisOfOneRankChangesNothing) {
  const auto seconds = [&](const char* mesh, const char* schedule) {
    const auto run = run_of(cut_twice(), context_plan(mesh, schedule, 4), hosts(2, 2));
    return simulate_run(run).seconds;
  };
  EXPECT_EQ(seconds("pipeline=2 context=1 tensor=2", "1f1b"),
            seconds("pipeline=2 tensor=2", "1f1b"));
  EXPECT_EQ(seconds("data=4 context=1", "one_stage"), seconds("data=4", "one_stage"));
}

TEST(ContextAxis, RefusesWhatCannotBeCut) {
  auto none = blocks_of_tokens();
  for (auto& block : none.blocks) block.context.reset();
  EXPECT_ERROR(stage_work(none, context_plan("context=2")), ErrorKind::usage,
               "[layout] block block0 and all others of the profile cannot be cut over the context "
               "axis; got no key context, and 2 ranks, expected blocks that say which part of them "
               "the axis cuts (docs/plan.md#context-axis)");
  EXPECT_ERROR(stage_work(blocks_of_tokens(), context_plan("context=8")), ErrorKind::usage,
               "[layout] block block0 cannot be cut over the context axis; got 24 tokens, and 8 "
               "ranks, expected a multiple of 16 tokens");
  const auto by_heads = [](const char* mesh) {
    return context_plan(mesh, "one_stage", 1, "all_to_all");
  };
  EXPECT_ERROR(stage_work(blocks_of_tokens(), by_heads("context=4")), ErrorKind::usage,
               "[layout] block block0 cannot be cut over the context axis; got 6 heads, and 4 "
               "ranks, expected a multiple of 4 heads");
}

// The cost model of the search has the time and the memory of the simulated step.
TEST(ContextAxis, TheCostModelIsThatOfTheSimulation) {
  auto profile = cut_twice();
  profile.in_step.overlap = 0.6;
  auto cluster = hosts(2, 4);
  for (auto& devices : cluster.devices) devices.flops = 1;
  profile.device_flops = 2;
  // Nothing is computed beside the average of these gradients.
  for (size_t i = 1; i < profile.blocks.size(); ++i) profile.blocks[i].parameter_bytes = 0;
  const StepModel model(
      {.profiles = {profile}, .cluster = cluster, .global_batch = 6, .cuts_layers = true});
  int with_context = 0;
  for (const auto& axes : model.block_axes()) {
    for (const bool recompute : {false, true}) {
      const StepSettings settings{.recompute = recompute, .devices = axes.ranks(), .axes = axes};
      const auto priced = model.price(settings, {{4, 1}});
      const auto plan = layout_of(model, priced);
      EXPECT_EQ(plan.mesh.ranks(), axes.ranks());
      EXPECT_EQ(plan.mesh.size(layout::Axis::context), axes.context);
      auto run = run_of(profile, plan, cluster);
      run.overlap = profile.in_step.overlap;
      run.reference_flops = profile.device_flops;
      const auto simulated = simulate_run(run);
      const auto what = plan.mesh.text() + (axes.sequence ? ", sequence" : "");
      EXPECT_NEAR(priced.seconds, simulated.seconds, 1e-9) << what;
      EXPECT_NEAR(priced.memory_bytes[0], simulated.ranks[0].peak_bytes, 1e-9) << what;
      with_context += axes.context > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(with_context, 4);
}

TEST(ContextAxis, TriesAxesWithinHosts) {
  const auto axes_of = [](const Profile& profile, const Cluster& cluster) {
    const StepModel model(
        {.profiles = {profile}, .cluster = cluster, .global_batch = 8, .cuts_layers = true});
    std::vector<std::string> all;
    for (const auto& axes : model.block_axes()) {
      all.push_back(std::to_string(axes.context) + "x" + std::to_string(axes.tensor) +
                    (axes.sequence ? "s" : ""));
    }
    return all;
  };
  EXPECT_THAT(axes_of(blocks_of_tokens(), hosts(1, 12)),
              testing::ElementsAre("1x1", "2x1", "3x1", "4x1", "6x1", "12x1"));
  EXPECT_THAT(axes_of(blocks_of_tokens(), hosts(2, 4)), testing::ElementsAre("1x1", "2x1", "4x1"));
  EXPECT_THAT(
      axes_of(cut_twice(), hosts(2, 4)),
      testing::ElementsAre("1x1", "1x2", "1x2s", "1x4", "1x4s", "2x1", "2x2", "2x2s", "4x1"));
}

// Activations of whole samples do not fit a device; those of a part of the tokens do.
TEST(ContextAxis, IsFoundWhereSamplesDoNotFit) {
  StepProblem problem{.profiles = {blocks_of_tokens()},
                      .cluster = hosts(1, 4),
                      .global_batch = 1,
                      .cuts_layers = true};
  problem.profiles[0].blocks.resize(1);
  problem.memory_bytes = 4000 + 250;
  const StepModel model(problem);
  const auto found = search_steps(model);
  ASSERT_TRUE(found.best);
  const auto plan = layout_of(model, *found.best);
  plan.verify();
  EXPECT_GT(plan.mesh.size(layout::Axis::context), 1) << plan.mesh.text();
  problem.cuts_layers = false;
  EXPECT_FALSE(search_steps(StepModel(problem)).best);
}

TEST(ContextAxis, IsAnAlternativeBesideTheTensorAxis) {
  const StepModel model(
      {.profiles = {cut_twice()}, .cluster = hosts(1, 4), .global_batch = 2, .cuts_layers = true});
  int tensor = 0, context = 0;
  for (const auto& plan : search_steps(model).alternatives) {
    const auto& settings = plan.settings;
    if (settings.family != StepFamily::one_stage || settings.recompute) continue;
    if (settings.zero_stage > 0) continue;
    context += settings.axes.context > 1 ? 1 : 0;
    tensor += settings.axes.context == 1 && settings.axes.tensor > 1 ? 1 : 0;
  }
  EXPECT_EQ(tensor, 2) << "without and with tensor_overlap";
  EXPECT_EQ(context, 1);
}

TEST(ContextAxis, SweepsKeepTheContextAxis) {
  SweptRun swept;
  swept.profile = cut_twice();
  swept.run.plan = context_plan("pipeline=2 context=2 tensor=2", "1f1b", 4);
  swept.run.cluster = hosts(2, 4);
  const auto points = sweep_devices(swept, {2, 4, 8, 16});
  std::vector<std::string> meshes;
  for (const auto& point : points) meshes.push_back(point.mesh);
  EXPECT_THAT(meshes, testing::ElementsAre("data=1 pipeline=1 context=2 tensor=2",
                                           "data=1 pipeline=2 context=2 tensor=2",
                                           "data=2 pipeline=2 context=2 tensor=2"));
}

}  // namespace
}  // namespace troika::plan
