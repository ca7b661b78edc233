// Plans with a tensor axis: the work of a rank, and steps against times computed by hand.
#include <gmock/gmock.h>

#include <map>
#include <utility>

#include "tests/plan/cut_runs.h"
#include "tests/support/errors.h"
#include "troika/layout/tensor_shard.h"
#include "troika/plan/search/step_layout.h"
#include "troika/plan/simulation/sweep.h"

namespace troika::plan {
namespace {

using layout::Cluster;
using layout::Mesh;
using layout::Profile;

Profile cut_blocks() {
  return with_tensor_cuts(equal_blocks(), 0);
}

layout::Plan tensor_plan(const std::string& mesh, std::string schedule, int micro_batches,
                         bool cuts_tokens = false) {
  layout::Plan plan;
  plan.mesh = Mesh::parse(mesh);
  plan.stages.sequence_parallel = cuts_tokens;
  plan.schedule = std::move(schedule);
  plan.micro_batches = micro_batches;
  return plan;
}

// The time of `count` ring all-reduces of 80 bytes between t devices of a host.
double sums_seconds(int count, int t) {
  return count * 2 * (t - 1) * (0.01 + 80.0 / t / 100);
}

TEST(TensorAxis, DividesTheWorkOfAStage) {
  const auto stages = stage_work(cut_blocks(), tensor_plan("pipeline=2 tensor=4", "1f1b", 4));
  ASSERT_EQ(stages.size(), 2u);
  // 4 * (1/4 + 3/16) = 1.75 for each of two blocks.
  EXPECT_EQ(stages[0].passes, (layout::StageTimes{3.5, 3.5, 3.5}));
  EXPECT_NEAR(stages[0].parameter_bytes, 2 * (200 + 200), 1e-9);
  EXPECT_NEAR(stages[0].resident_bytes, 3 * 800, 1e-9);
  EXPECT_NEAR(stages[0].gradient_bytes, 800, 1e-9);
  EXPECT_NEAR(stages[0].activation_bytes, 2 * (400 + 100), 1e-9);
  EXPECT_NEAR(stages[0].workspace_bytes, 25, 1e-9);
  EXPECT_EQ(stages[0].output_bytes, 80);
  EXPECT_EQ(stages[0].forward_sums, (std::vector<TensorSums>{{4, 80}}));
  EXPECT_EQ(stages[0].backward_sums, (std::vector<TensorSums>{{6, 80}}));
  EXPECT_TRUE(stages[0].backward_gathers.empty())
      << "inputs are whole without sequence parallelism";
}

TEST(TensorAxis, SequenceParallelismDividesTokens) {
  const auto stages = stage_work(cut_blocks(), tensor_plan("pipeline=2 tensor=4", "1f1b", 4, true));
  EXPECT_EQ(stages[0].passes, (layout::StageTimes{2, 2, 2}));
  EXPECT_EQ(stages[0].activation_bytes, 400);
  EXPECT_EQ(stages[0].output_bytes, 20);
  EXPECT_NEAR(stages[0].parameter_bytes, 800, 1e-9);
  EXPECT_EQ(stages[0].forward_sums, (std::vector<TensorSums>{{4, 80}}));
  EXPECT_TRUE(stages[0].sums_tokens);
  EXPECT_EQ(stages[0].backward_gathers, (std::vector<TensorSums>{{2, 80}}));
}

TEST(TensorAxis, DoesNotCutABlockThatSaysNothing) {
  auto profile = cut_blocks();
  for (size_t i : {1, 2, 3}) profile.blocks[i].tensor.reset();
  const auto work = stage_work(profile, tensor_plan("tensor=4", "one_stage", 1))[0];
  EXPECT_EQ(work.passes.forward, 1.75 + 3 * 4);
  EXPECT_EQ(work.parameter_bytes, 400 + 3 * 1000);
  EXPECT_EQ(work.forward_sums, (std::vector<TensorSums>{{2, 80}}));
}

TEST(TensorAxis, RecomputationSumsAgain) {
  auto plan = tensor_plan("tensor=2", "one_stage", 1);
  plan.recompute = "full";
  const auto work = stage_work(cut_blocks(), plan)[0];
  EXPECT_EQ(work.backward_sums, (std::vector<TensorSums>{{4 * 2 + 4 * 3, 80}}));
}

// The ranks of a tensor axis wait for the latest in each block, so their waits add up as times do.
TEST(TensorAxis, PassesWaitForTheLatestRankInEachBlock) {
  auto profile = cut_blocks();
  for (auto& block : profile.blocks) block.spread = 0.1;
  const auto ratio = [&](const char* mesh) {
    const auto plan = tensor_plan(mesh, "one_stage", 1);
    return stage_work(profile, plan)[0].passes.forward /
           stage_work(cut_blocks(), plan)[0].passes.forward;
  };
  constexpr double kOfTwo = 0.5641895835477563;  // expected maximum of two normal numbers
  EXPECT_NEAR(ratio("tensor=2"), 1 + kOfTwo * 0.1, 1e-12);
  EXPECT_NEAR(ratio("data=2 tensor=2"), 1 + kOfTwo * 0.1 + kOfTwo * 0.1 / 2, 1e-12);
}

TEST(TensorAxis, ExposesTheSumsOfPasses) {
  for (const int t : {2, 4}) {
    const auto plan = tensor_plan("tensor=" + std::to_string(t), "one_stage", 1);
    const auto simulation = simulate_run(run_of(cut_blocks(), plan, hosts(1, t)));
    const double computes = 4 * 12 * (0.25 + 0.75 / t);
    // 2 sums forward and 3 backward in each of 4 blocks.
    const double sums = sums_seconds(4 * 5, t);
    EXPECT_NEAR(simulation.seconds, computes + sums, 1e-9);
    for (const auto& rank : simulation.ranks) {
      EXPECT_NEAR(rank.compute_seconds, computes, 1e-9);
      EXPECT_NEAR(rank.exposed_seconds, sums, 1e-9);
      EXPECT_NEAR(rank.idle_seconds, 0, 1e-9);
    }
    // A ring sends 2 (t - 1)/t of the bytes through each device's port, and nothing leaves a host.
    EXPECT_NEAR(simulation.links[0].bytes, 20 * 80 * 2.0 * (t - 1) / t, 1e-9);
    EXPECT_EQ(simulation.links[static_cast<size_t>(2 * (t + 1))].bytes, 0);
  }
}

// In a whole backward pass, the gradients of weights compute beside the sums, as far as they last.
TEST(TensorAxis, GradientsOfWeightsHideSums) {
  auto profile = cut_blocks();
  for (auto& block : profile.blocks) {
    block.tensor->weight_share_beside_sums = 0.75;
    block.tensor->input_share_beside_gathers = 0.5;
  }
  auto plan = tensor_plan("tensor=2", "one_stage", 1);
  const double computes = 4 * 12 * 0.625;
  // A rank computes 1.5 of the 4 seconds of a block beside its 3 sums.
  for (const double overlap : {1.0, 0.5, -0.5}) {
    auto run = run_of(profile, plan, hosts(1, 2));
    run.overlap = overlap;
    const double exposed = sums_seconds(8, 2) + 12 * (sums_seconds(1, 2) - overlap * 0.5);
    const auto simulation = simulate_run(run);
    EXPECT_NEAR(simulation.seconds, computes + exposed, 1e-9) << overlap;
    EXPECT_NEAR(simulation.ranks[0].exposed_seconds, exposed, 1e-9) << overlap;
  }
  // Recomputed sums are beside nothing.
  plan.recompute = "full";
  EXPECT_NEAR(simulate_run(run_of(profile, plan, hosts(1, 2))).ranks[0].exposed_seconds,
              sums_seconds(16, 2) + 12 * (sums_seconds(1, 2) - 0.5), 1e-9);
  plan.recompute = "none";
  // The reduce-scatters and the gathers of inputs take 0.41 s each, those of gradients are beside
  // nothing.
  plan.stages.sequence_parallel = true;
  EXPECT_NEAR(simulate_run(run_of(profile, plan, hosts(1, 2))).ranks[0].exposed_seconds,
              sums_seconds(8 + 6, 2), 1e-9);
}

// The first stage does not split its backward passes, because its input has no gradient.
TEST(TensorAxis, NothingHidesTheSumsOfSplitBackwardPasses) {
  const auto plan = tensor_plan("pipeline=2 tensor=2", "zb-h1", 2);
  auto profile = cut_blocks();
  const auto without = simulate_run(run_of(profile, plan, hosts(2, 2)));
  for (auto& block : profile.blocks) block.tensor->weight_share_beside_sums = 0.75;
  const auto with = simulate_run(run_of(profile, plan, hosts(2, 2)));
  // 2 micro-batches in 2 blocks.
  EXPECT_NEAR(without.ranks[0].exposed_seconds - with.ranks[0].exposed_seconds, 2 * 2 * 3 * 0.5,
              1e-9);
  EXPECT_NEAR(without.ranks[3].exposed_seconds, with.ranks[3].exposed_seconds, 1e-9);
}

// On more ranks than were counted, a rank has less of what these divide.
TEST(TensorAxis, ARankHasTheBytesThatWereCounted) {
  auto profile = cut_blocks();
  profile.blocks[0].in_stage.weight_input_bytes = 80;
  auto& cut = *profile.blocks[0].tensor;
  cut.counted_ranks = 2;
  cut.of_rank = {.saved_bytes = 500,
                 .workspace_bytes = 60,
                 .weight_saved_share = 0.25,
                 .weight_input_bytes = 80};
  cut.of_rank_with_tokens = {.saved_bytes = 400, .workspace_bytes = 30, .weight_input_bytes = 40};
  const auto of = [&](int ranks, bool sequence) {
    return layout::tensor_shard(profile, ranks, sequence).blocks[0];
  };
  EXPECT_NEAR(of(2, false).saved_bytes, 500, 1e-9);
  EXPECT_NEAR(of(4, false).saved_bytes, 350, 1e-9) << "3/4 are divided";
  EXPECT_EQ(of(4, false).workspace_bytes, 60) << "more than one rank alone needs";
  EXPECT_EQ(of(4, false).in_stage.weight_saved_share, 0.25);
  EXPECT_EQ(of(4, false).in_stage.weight_input_bytes, 80);
  EXPECT_NEAR(of(4, true).saved_bytes, 200, 1e-9);
  EXPECT_NEAR(of(4, true).in_stage.weight_input_bytes, 20, 1e-9);
  EXPECT_NEAR(of(4, true).workspace_bytes, 30 * (0.5 + 0.5 / 4) / 0.75, 1e-9);
}

// Backward passes gather 4 inputs again, each for half the bytes and the time of a sum.
TEST(TensorAxis, ReduceScattersAndGathersMoveTheBytesOfSums) {
  auto plan = tensor_plan("tensor=4", "one_stage", 1);
  const auto whole = simulate_run(run_of(cut_blocks(), plan, hosts(1, 4)));
  plan.stages.sequence_parallel = true;
  const auto tokens = simulate_run(run_of(cut_blocks(), plan, hosts(1, 4)));
  EXPECT_NEAR(tokens.links[0].bytes, whole.links[0].bytes * 22 / 20, 1e-9);
  EXPECT_NEAR(tokens.ranks[0].exposed_seconds, whole.ranks[0].exposed_seconds * 22 / 20, 1e-9);
  EXPECT_NEAR(tokens.seconds, 4 * 12 / 4.0 + sums_seconds(22, 4), 1e-9);
}

// Each rank of a tensor axis sends the whole activation to its counterpart, through its host's
// port.
TEST(TensorAxis, EveryRankSendsItsMessage) {
  const auto plan = tensor_plan("pipeline=2 tensor=2", "1f1b", 1);
  const auto simulation = simulate_run(run_of(cut_blocks(), plan, hosts(2, 2)));
  EXPECT_EQ(simulation.ranks[0].sent_bytes, 80);
  EXPECT_EQ(simulation.ranks[3].sent_bytes, 80);
  const double passes = 4 * 12 * (0.25 + 0.75 / 2) + sums_seconds(20, 2);
  EXPECT_NEAR(simulation.seconds, passes + 2 * (0.1 + 2 * 80 / 10.0), 1e-9);
}

// The ranks with the same part of the blocks average it: two rings over each host's port.
TEST(TensorAxis, AveragesThePartsOfBlocks) {
  auto plan = tensor_plan("data=2 tensor=2", "one_stage", 1);
  auto run = run_of(cut_blocks(), plan, hosts(2, 2));
  const double bytes = run.stages[0].parameter_bytes;
  EXPECT_NEAR(bytes, 4 * (200 + 400), 1e-9);
  run.stages[0].buckets = {{.bytes = bytes}};
  const auto simulation = simulate_run(run);
  const double passes = 4 * 12 * (0.25 + 0.75 / 2) + sums_seconds(20, 2);
  EXPECT_NEAR(simulation.seconds, passes + 2 * 0.1 + 2 * bytes / 10, 1e-9);
  // With the tensor axis outside, two groups sum over each host's port, and averages stay inside.
  plan.mesh = Mesh::parse("tensor=2 data=2");
  run.plan = plan;
  const double computes = 4 * 12 * (0.25 + 0.75 / 2);
  EXPECT_NEAR(simulate_run(run).seconds,
              computes + 20 * 2 * (0.1 + 80 / 10.0) + 2 * 0.01 + bytes / 100, 1e-9);
}

// Both replicas sum over the hosts' ports at the same time in the forward pass, but not in the
// backward pass, because one is slow there. So the pass of the fast one ends before its buckets are
// expected. They are averaged all the same, once.
TEST(TensorAxis, AveragesBucketsOnceIfSumsGetFaster) {
  auto run = run_of(cut_blocks(), tensor_plan("tensor=2 data=2", "one_stage", 1), hosts(2, 2));
  run.stages = {{.passes = {1, 6, 6},
                 .buckets = {{.bytes = 8}, {.bytes = 4}},
                 .forward_sums = {{1, 320}},
                 .backward_sums = {{1, 20}}}};
  run.disturbances.slow_ranks = {{1, 1.5}, {3, 1.5}};
  run.steps = 2;
  run.records_trace = true;
  std::map<std::pair<int, int>, int> spans;  // by step and bucket
  for (const auto& span : simulate_run(run).spans) {
    if (span.name == "bucket") ++spans[{span.step, span.bucket}];
  }
  const std::map<std::pair<int, int>, int> of_four_ranks{
      {{0, 0}, 4}, {{0, 1}, 4}, {{1, 0}, 4}, {{1, 1}, 4}};
  EXPECT_EQ(spans, of_four_ranks);
}

// The first bucket is averaged while the rank waits for its sums, which take 2 s, and slows
// nothing.
TEST(TensorAxis, CollectivesDoNotSlowAWaitForSums) {
  auto cluster = hosts(2, 2);
  cluster.group = {.latency = 0, .bandwidth = 100};
  cluster.network = {.latency = 0, .bandwidth = 200};
  auto run = run_of(cut_blocks(), tensor_plan("data=2 tensor=2", "one_stage", 1), cluster);
  run.stages = {{.passes = {1, 1, 1},
                 .buckets = {{100, 1}, {100, 0}},
                 .parameter_bytes = 200,
                 .backward_sums = {{1, 200}}}};
  run.overlap = 0;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 3 + 2 + 1, 1e-5);
  EXPECT_NEAR(simulation.ranks[0].exposed_seconds, 2 + 1, 1e-5);
  EXPECT_NEAR(simulation.ranks[0].idle_seconds, 0, 1e-5);
}

// A mesh of all axes with one replica, one stage or one tensor rank is as fast as without the axis.
TEST(TensorAxis, AnAxisOfOneRankChangesNothing) {
  auto without = cut_blocks();
  for (auto& block : without.blocks) block.tensor.reset();
  const auto run = [&](const Profile& profile, const char* mesh) {
    return simulate_run(run_of(profile, tensor_plan(mesh, "1f1b", 4), hosts(2, 2))).seconds;
  };
  EXPECT_EQ(run(cut_blocks(), "pipeline=2 data=2 tensor=1"), run(without, "pipeline=2 data=2"));
}

TEST(TensorAxis, RefusesWhatCannotBeCut) {
  auto none = cut_blocks();
  for (auto& block : none.blocks) block.tensor.reset();
  EXPECT_ERROR(stage_work(none, tensor_plan("tensor=2", "one_stage", 1)), ErrorKind::usage,
               "[layout] block block0 and all others of the profile cannot be cut over the tensor "
               "axis; got no key tensor, and 2 ranks, expected blocks that say which part of them "
               "the axis cuts (docs/plan.md#tensor-axis)");
  EXPECT_ERROR(stage_work(cut_blocks(), tensor_plan("tensor=3", "one_stage", 1)), ErrorKind::usage,
               "[layout] block block0 cannot be cut over the tensor axis; got 4 units, such as "
               "heads, and 3 ranks, expected a multiple of 3 units");
  EXPECT_ERROR(stage_work(cut_blocks(), tensor_plan("data=2", "one_stage", 1, true)),
               ErrorKind::usage,
               "[layout] sequence parallelism; got 1 rank, expected a tensor axis of 2 or more");
}

TEST(TensorAxis, SequenceParallelismDividesTheTokensOfABlock) {
  auto profile = cut_blocks();
  profile.blocks[2].tensor->tokens = 6;
  auto plan = tensor_plan("tensor=4", "one_stage", 1);
  stage_work(profile, plan);
  plan.stages.sequence_parallel = true;
  EXPECT_ERROR(stage_work(profile, plan), ErrorKind::usage,
               "[layout] block block2 cannot be cut over the tensor axis; got 6 tokens, and 4 "
               "ranks, expected a multiple of 4 tokens");
}

// The cost model of the search has the time and the memory of the simulated step.
TEST(TensorAxis, TheCostModelIsThatOfTheSimulation) {
  const StepModel model(
      {.profiles = {cut_blocks()}, .cluster = hosts(2, 4), .global_batch = 6, .cuts_layers = true});
  for (const auto& axis : model.block_axes()) {
    for (const bool recompute : {false, true}) {
      const StepSettings settings{.recompute = recompute, .devices = axis.tensor, .axes = axis};
      const auto priced = model.price(settings, {{4, 1}});
      const auto plan = layout_of(model, priced);
      EXPECT_EQ(plan.mesh.ranks(), axis.tensor);
      EXPECT_EQ(plan.stages.sequence_parallel, axis.sequence);
      const auto simulated = simulate_run(run_of(cut_blocks(), plan, hosts(2, 4)));
      EXPECT_NEAR(priced.seconds, simulated.seconds, 1e-9) << axis.tensor << axis.sequence;
      EXPECT_NEAR(priced.memory_bytes[0], simulated.ranks[0].peak_bytes, 1e-9) << axis.tensor;
    }
  }
  // Two stages on a host each: both ranks of an axis send through its port.
  auto links = hosts(2, 2);
  links.network.bandwidth = 1000;
  const StepModel two(
      {.profiles = {cut_blocks()}, .cluster = links, .global_batch = 6, .cuts_layers = true});
  const StepSettings settings{.family = StepFamily::pipeline, .devices = 4, .axes = {.tensor = 2}};
  const auto priced = two.price(settings, {{2, 1}, {4, 1}});
  const auto simulated = simulate_run(run_of(cut_blocks(), layout_of(two, priced), links));
  EXPECT_NEAR(priced.seconds, simulated.seconds, 0.01 * simulated.seconds);
}

TEST(TensorAxis, SweepsKeepTheTensorAxis) {
  SweptRun swept;
  swept.profile = cut_blocks();
  swept.run.plan = tensor_plan("pipeline=2 tensor=2", "1f1b", 4);
  swept.run.cluster = hosts(2, 2);
  const auto points = sweep_devices(swept, {1, 2, 4, 8});
  std::vector<std::string> meshes;
  for (const auto& point : points) meshes.push_back(point.mesh);
  EXPECT_THAT(meshes,
              testing::ElementsAre("data=1 pipeline=1 tensor=2", "data=1 pipeline=2 tensor=2",
                                   "data=2 pipeline=2 tensor=2"));
  for (const auto& point : points) EXPECT_EQ(point.speed_up, std::nullopt);  // of one device
}

}  // namespace
}  // namespace troika::plan
