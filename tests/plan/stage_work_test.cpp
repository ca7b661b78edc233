// The work of stages from a profile, sweeps, and traces of simulated runs.
#include "troika/plan/simulation/stage_work.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "tests/layout/cluster_levels.h"
#include "tests/support/errors.h"
#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/run_trace.h"
#include "troika/plan/simulation/sweep.h"

namespace troika::plan {
namespace {

using testing::ElementsAre;

using layout::Cluster;
using layout::Mesh;
using layout::Profile;

Profile four_blocks() {
  Profile profile;
  profile.micro_batch = 8;
  profile.optimizer_factor = 2;
  for (int i = 0; i < 4; ++i) {
    profile.blocks.push_back({.name = "block" + std::to_string(i),
                              .forward = 1,
                              .backward_input = 1,
                              .backward_weight = 1,
                              .output_bytes = 10.0 * (i + 1),
                              .saved_bytes = 100,
                              .parameter_bytes = 1000,
                              .workspace_bytes = 5.0 * i});
  }
  return profile;
}

layout::Plan plan_on(const std::string& mesh, std::string schedule, int micro_batches) {
  layout::Plan plan;
  plan.mesh = Mesh::parse(mesh);
  plan.schedule = std::move(schedule);
  plan.micro_batches = micro_batches;
  return plan;
}

TEST(StageWork, AddsUpBlocks) {
  const auto stages = stage_work(four_blocks(), plan_on("pipeline=2", "1f1b", 4),
                                 {.optimizer_bytes_per_second = 500});
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].passes, (layout::StageTimes{2, 2, 2}));
  EXPECT_EQ(stages[0].output_bytes, 20);
  EXPECT_EQ(stages[1].output_bytes, 0);
  EXPECT_EQ(stages[0].parameter_bytes, 2000);
  EXPECT_EQ(stages[0].optimizer_seconds, 4);
  auto rated = four_blocks();
  rated.optimizer_bytes_per_second = 1000;
  EXPECT_EQ(stage_work(rated, plan_on("pipeline=2", "1f1b", 4))[0].optimizer_seconds, 2);
  rated.in_step.first_micro_batch_factor = 1.5;
  EXPECT_EQ(stage_work(rated, plan_on("pipeline=2", "1f1b", 4))[0].passes.forward, 2 * 1.125);
  EXPECT_EQ(stages[0].resident_bytes, 2000 * 3);
  EXPECT_EQ(stages[0].gradient_bytes, 2000);
  EXPECT_EQ(stages[1].activation_bytes, 200);
  EXPECT_EQ(stages[1].weight_part_bytes, 100);
  EXPECT_EQ(stages[1].input_bytes, 20);
  EXPECT_EQ(stages[1].workspace_bytes, 15);
  auto plan = plan_on("pipeline=2", "1f1b", 4);
  plan.stages.cut = "block0|block1,block2,block3";
  EXPECT_EQ(stage_work(four_blocks(), plan)[1].passes.forward, 3);
}

// The expected maximum of two normal numbers is 1 / sqrt(pi) standard deviations.
TEST(StageWork, WaitsForTheLatestReplica) {
  auto profile = four_blocks();
  for (auto& block : profile.blocks) block.spread = 0.1;
  const double maximum = 1 / std::sqrt(std::numbers::pi);
  const auto factor = [&](const layout::Plan& plan) {
    return stage_work(profile, plan)[0].passes.forward /
           stage_work(four_blocks(), plan)[0].passes.forward;
  };
  EXPECT_NEAR(factor(plan_on("data=2", "one_stage", 1)), 1 + maximum * 0.1 / 2, 1e-6);
  auto zero = plan_on("data=2", "one_stage", 1);
  zero.exchange.method = layout::ExchangeMethod::zero;
  zero.exchange.zero_stage = 3;
  EXPECT_NEAR(factor(zero), 1 + maximum * 0.1, 1e-6) << "in each block";
  EXPECT_EQ(factor(plan_on("pipeline=2", "1f1b", 4)), 1);
  EXPECT_NEAR(factor(plan_on("pipeline=2 data=2", "1f1b", 4)), 1 + maximum * 0.1 / std::sqrt(2),
              1e-6);
}

TEST(StageWork, CountsAllThatCrossesACut) {
  auto profile = four_blocks();
  // Block 0 is read by block 3, too; the blocks are listed in another order.
  profile.edges = {{3, 2}, {2, 1}, {1, 0}, {3, 0}};
  auto plan = plan_on("pipeline=4", "1f1b", 4);
  plan.stages.cut = "block3|block2|block1|block0";
  const auto stages = stage_work(profile, plan);
  EXPECT_EQ(stages[0].output_bytes, 40);
  EXPECT_EQ(stages[1].output_bytes, 40 + 30);
  EXPECT_EQ(stages[2].output_bytes, 40 + 20);
}

TEST(StageWork, FillsBucketsFromTheLastBlockOn) {
  auto plan = plan_on("data=2", "one_stage", 1);
  plan.exchange.first_bucket_bytes = 1;
  plan.exchange.bucket_bytes = 2000;
  const auto stages = stage_work(four_blocks(), plan);
  ASSERT_EQ(stages[0].buckets.size(), 3u);
  EXPECT_EQ(stages[0].buckets[0].bytes, 1000);
  EXPECT_EQ(stages[0].buckets[0].seconds_before_end, 6);
  EXPECT_EQ(stages[0].buckets[1].bytes, 2000);
  EXPECT_EQ(stages[0].buckets[1].seconds_before_end, 2);
  EXPECT_EQ(stages[0].buckets[2].bytes, 1000);
  EXPECT_EQ(stages[0].buckets[2].seconds_before_end, 0);
  EXPECT_EQ(stages[0].buckets[0].forward_seconds_before, 3);
  EXPECT_EQ(stages[0].buckets[1].forward_seconds_before, 1);
  EXPECT_EQ(stages[0].buckets[2].forward_seconds_before, 0);
}

TEST(StageWork, SharesMemoryWithZero) {
  auto plan = plan_on("data=4", "one_stage", 1);
  plan.exchange.method = layout::ExchangeMethod::zero;
  const auto resident = [&](int64_t stage) {
    plan.exchange.zero_stage = stage;
    return stage_work(four_blocks(), plan)[0].resident_bytes;
  };
  EXPECT_EQ(resident(1), 4000 * (1 + 1 + 2.0 / 4));
  plan.exchange.bucket_bytes = plan.exchange.first_bucket_bytes = 1500;
  EXPECT_EQ(resident(2), 4000 * (1 + 3.0 / 4) + 2 * 1500) << "two open buckets";
  // The gathered parameters of two blocks, and the gradients of two before they are scattered.
  EXPECT_EQ(resident(3), 4000 * (4.0 / 4) + 2 * 1000 + 2 * 1000);
  // Whole gradients of earlier micro-batches, and the bucket into which the first of its gradients,
  // a sixth of a block, has moved.
  plan.micro_batches = 2;
  EXPECT_EQ(resident(1), 4000 * (1 + 1 + 2.0 / 4));
  EXPECT_EQ(resident(2), 4000 * (1 + 3.0 / 4) + 4000 + 1500 - 167);
  EXPECT_EQ(resident(3), 4000 * (4.0 / 4) + 2 * 1000 + 4000 + 1000 - 167);
}

TEST(StageWork, RecomputesSegments) {
  auto plan = plan_on("data=1", "one_stage", 1);
  plan.recompute = "full";
  const auto full = stage_work(four_blocks(), plan)[0];
  EXPECT_EQ(full.passes.backward(), 8 + 4);
  EXPECT_EQ(full.activation_bytes, 0 + 10 + 20 + 30);
  EXPECT_EQ(full.workspace_bytes, 15 + 100);
  plan.recompute = "every_2";
  EXPECT_EQ(stage_work(four_blocks(), plan)[0].passes.backward(), 8 + 2);
}

TEST(StageWork, ScalesWithSamples) {
  const auto half = stage_work(four_blocks(), plan_on("data=1", "one_stage", 1),
                               {.samples = 0.5, .pass_overhead = 1})[0];
  EXPECT_EQ(half.passes.forward, 1 + 3 * 0.5);
  EXPECT_EQ(half.activation_bytes, 200);
  EXPECT_EQ(half.parameter_bytes, 4000);
}

// A pass has its overhead once: F, I and W each, B as a whole, and also a pass that recomputes.
TEST(StageWork, CountsTheOverheadOfAPassOnce) {
  const StageWorkOptions half{.samples = 0.5, .pass_overhead = 1};
  auto plan = plan_on("data=1", "one_stage", 1);
  const auto passes = stage_work(four_blocks(), plan, half)[0].passes;
  EXPECT_EQ(passes.of(layout::ActionKind::forward), 1 + 3 * 0.5);
  EXPECT_EQ(passes.of(layout::ActionKind::backward_input), 1 + 3 * 0.5);
  EXPECT_EQ(passes.of(layout::ActionKind::backward_weight), 1 + 3 * 0.5);
  EXPECT_EQ(passes.of(layout::ActionKind::backward), 1 + 7 * 0.5);
  plan.recompute = "full";
  const auto again = stage_work(four_blocks(), plan, half)[0].passes;
  EXPECT_EQ(again.of(layout::ActionKind::backward_input), 1 + 7 * 0.5);
  EXPECT_EQ(again.of(layout::ActionKind::backward), 1 + 11 * 0.5);
}

// A bucket is ready when its last block's backward pass ends.
TEST(StageWork, TimesBucketsByTheWholeBackwardPass) {
  auto plan = plan_on("data=2", "one_stage", 1);
  plan.exchange.first_bucket_bytes = 1;
  plan.exchange.bucket_bytes = 1;
  const auto befores = [&](const StageWorkOptions& options) {
    std::vector<double> seconds;
    const auto stages = stage_work(four_blocks(), plan, options);
    for (const auto& bucket : stages[0].buckets) {
      seconds.push_back(bucket.seconds_before_end);
    }
    return seconds;
  };
  EXPECT_THAT(befores({}), ElementsAre(6, 4, 2, 0));
  // 8 s take 1 + 7 / 2 s.
  EXPECT_THAT(befores({.samples = 0.5, .pass_overhead = 1}),
              ElementsAre(6 * 4.5 / 8, 4 * 4.5 / 8, 2 * 4.5 / 8, 0));
  // Each block runs forward again before its backward pass.
  plan.recompute = "full";
  EXPECT_THAT(befores({}), ElementsAre(9, 6, 3, 0));
  // The blocks 0 and 1, and then 2 and 3, which are kept.
  plan.recompute = "sqrt";
  EXPECT_THAT(befores({}), ElementsAre(8, 6, 2, 0));
}

TEST(StageWork, RefusesWhatTheProfileDoesNotTell) {
  auto plan = plan_on("pipeline=5", "gpipe", 1);
  EXPECT_ERROR(stage_work(four_blocks(), plan), ErrorKind::usage,
               "[plan] blocks of the profile; got 4, expected at least 5, one for each stage");
  plan = plan_on("pipeline=2", "gpipe", 1);
  plan.precision = "bf16-mixed";
  EXPECT_ERROR(stage_work(four_blocks(), plan), ErrorKind::usage,
               "[plan] precision of the plan; got bf16-mixed, expected 32, as the profile has");
  plan.precision = "32";
  plan.recompute = "selective";
  EXPECT_ERROR(stage_work(four_blocks(), plan), ErrorKind::usage,
               "[plan] recompute of a simulation; got selective, expected none, full, sqrt or "
               "every_K");
  plan.recompute = "none";
  plan.stages.parameters = 1000;
  EXPECT_NO_THROW(stage_work(four_blocks(), plan));
  plan.stages.parameters = 5;
  EXPECT_ERROR(stage_work(four_blocks(), plan), ErrorKind::usage,
               "[plan] a plan for another model: stages.parameters of the plan; got 5, expected a "
               "number of parameters of 4000 bytes, those of the profile");
  auto counted = four_blocks();
  counted.model.parameters = 6;
  EXPECT_ERROR(stage_work(counted, plan), ErrorKind::usage,
               "[plan] a plan for another model: stages.parameters of the plan; got 5, expected 6, "
               "the number in the profile");
  plan.stages.parameters = 0;
  plan.stages.cut = "block0|block1|block2,block3";
  EXPECT_ERROR(stage_work(four_blocks(), plan), ErrorKind::usage,
               "[plan] stages.cut of the plan; got 3 stages, expected 2, as its schedule has");
  plan.stages.cut = "stem|block1";
  EXPECT_THROW(stage_work(four_blocks(), plan), Error);
  plan.stages.cut = "";
  EXPECT_ERROR(stage_work(four_blocks(), plan, {.samples = -1}), ErrorKind::usage,
               "[plan] samples of a micro-batch; got -1, expected a number from 0 on");
}

// The errors of a plan from a file name the line.
TEST(StageWork, RefusesPlansWithTheLine) {
  const auto refused = [](const std::string& text, const std::string& expected) {
    const layout::PlanPlaces places(text, "plan.toml");
    const auto plan = layout::Plan::parse(text, "plan.toml");
    SimulatedRun run{.plan = plan, .places = places, .cluster = Cluster::uniform(1, 1)};
    EXPECT_ERROR(run.stages = stage_work(four_blocks(), plan, {.places = places});
                 simulate_run(run), ErrorKind::usage, expected);
  };
  const std::string mesh = "[mesh]\naxes = \"pipeline=2\"\n[schedule]\nname = \"gpipe\"\n";
  refused(mesh,
          "[plan] devices of the cluster; got 1, expected at least 2, the ranks of mesh pipeline=2 "
          "(plan.toml:2)");
  refused(mesh + "[stages]\nparameters = 7\n",
          "[plan] a plan for another model: stages.parameters of the plan (plan.toml:6); got 7, "
          "expected a number of parameters of 4000 bytes, those of the profile");
  refused(mesh + "[stages]\ncut = \"block0,block1,block2,block3\"\n",
          "[plan] stages.cut of the plan (plan.toml:6); got 1 stages, expected 2, as its schedule "
          "has");
  refused(mesh + "[stages]\nparameters = 0\ncut = \"stem|block1\"\n",
          "[layout] the cut `stem|block1` (plan.toml:7) has a name that is not the next block's; "
          "got stem, expected block0 (blocks in the model's order, `|` between stages, `name*2` "
          "for the next two of a name)");
}

TEST(StageWork, TakesMeasuredLinksWhereTheClusterHasNone) {
  auto profile = four_blocks();
  profile.network.link = {1e-5, 1e9};
  profile.group.link = {1e-6, 1e10};
  auto cluster = Cluster::uniform(2, 2);
  cluster.group = {2e-6, 0};
  const auto merged = with_measured_links(cluster, profile);
  EXPECT_EQ(merged.network, profile.network.link);
  EXPECT_EQ(merged.group, cluster.group);
}

SweptRun swept_run() {
  SweptRun swept;
  swept.profile = four_blocks();
  swept.run.plan = plan_on("pipeline=4 data=2", "1f1b", 8);
  swept.run.cluster = Cluster::uniform(2, 4);
  return swept;
}

TEST(Sweep, ReadsRanges) {
  using Values = std::vector<int>;
  const auto doubled = SweepRange::parse("devices=1..12");
  EXPECT_EQ(doubled.what, SweepRange::What::devices);
  EXPECT_EQ(doubled.values, (Values{1, 2, 4, 8, 12}));
  EXPECT_EQ(SweepRange::parse("devices=3..9/3").values, (Values{3, 6, 9}));
  EXPECT_EQ(SweepRange::parse("devices=3..10/3").values, (Values{3, 6, 9}));
  const auto list = SweepRange::parse("micro_batches=6,2,2");
  EXPECT_EQ(list.what, SweepRange::What::micro_batches);
  EXPECT_EQ(list.values, (Values{2, 6}));
  const auto all = SweepRange::parse("micro_batches");
  EXPECT_EQ(all.what, SweepRange::What::micro_batches);
  EXPECT_EQ(all.values, SweepRange::parse("micro_batches=1..1024").values);
  for (const auto* text :
       {"device", "devices=", "hosts=1..2", "devices=0..4", "devices=4..2", "devices=1..",
        "devices=1..4/0", "devices=1,x", "devices=1..1000000/1", "devices=16385"}) {
    EXPECT_THROW(SweepRange::parse(text), Error) << text;
  }
}

TEST(Sweep, CurvesOfDevices) {
  const auto points = sweep_devices(swept_run(), {1, 2, 4, 6, 8, 16});
  ASSERT_EQ(points.size(), 6u);
  EXPECT_DOUBLE_EQ(points[0].step_seconds, 8 * 12);
  EXPECT_EQ(points[0].speed_up, 1);
  EXPECT_DOUBLE_EQ(points[0].samples_per_second, 8 * 8 / 96.0);
  // Without links, 1f1b takes m + p - 1 times its stage.
  EXPECT_DOUBLE_EQ(points[1].speed_up.value(), 2 * 8.0 / 9);
  EXPECT_DOUBLE_EQ(points[2].speed_up.value(), 4 * 8.0 / 11);
  EXPECT_DOUBLE_EQ(points[2].idle_share, 3.0 / 11);
  EXPECT_EQ(points[3].used, 4);
  EXPECT_DOUBLE_EQ(points[3].speed_up.value(), points[2].speed_up.value());
  EXPECT_DOUBLE_EQ(points[3].idle_share, 1 - 4 * 8.0 / 11 / 6);
  EXPECT_EQ(points[4].mesh, "pipeline=4 data=2");
  EXPECT_DOUBLE_EQ(points[5].speed_up.value(), 4 * points[2].speed_up.value());
}

TEST(Sweep, FindsTheBestNumberOfMicroBatches) {
  auto swept = swept_run();
  swept.run.plan.mesh = Mesh::parse("pipeline=4");
  swept.run.plan.micro_batches = 4;
  // A pass of 1 s has 0.1 s that do not depend on the samples: more micro-batches fill the
  // pipeline, but cost more.
  swept.work.pass_overhead = 0.1;
  const auto points = sweep_micro_batches(swept, {1, 2, 4, 8, 16, 32, 64});
  ASSERT_EQ(points.size(), 6u);
  for (const auto& point : points) {
    const double m = point.micro_batches;
    // The forward pass takes 0.1 + 0.9 * 4 / m, and the backward pass 0.1 + 1.9 * 4 / m.
    EXPECT_NEAR(point.step_seconds, (m + 3) * (0.2 + 2.8 * 4 / m), 1e-9);
    EXPECT_DOUBLE_EQ(point.samples, 32 / m);
  }
  ASSERT_TRUE(best_of(points));
  EXPECT_EQ(best_of(points)->micro_batches, 16);
  // A plan that does not fit is not the best.
  swept.run.plan.schedule = "gpipe";
  for (auto& row : swept.run.cluster.devices) row.memory_bytes = 1;
  EXPECT_EQ(best_of(sweep_micro_batches(swept, {1, 2})), nullptr);
}

TEST(Sweep, ResizesClusters) {
  auto cluster = Cluster::uniform(2, 4);
  cluster.devices[1].flops = 3;
  EXPECT_EQ(resized(cluster, 8), cluster);
  EXPECT_EQ(resized(cluster, 5).ranks(), 5);
  EXPECT_EQ(resized(cluster, 5).devices_of(4).host, 1);
  const auto larger = resized(cluster, 18);
  EXPECT_EQ(larger.ranks(), 18);
  EXPECT_EQ(larger.hosts.size(), 5u);
  EXPECT_EQ(larger.devices_of(17).flops, 3);
  EXPECT_EQ(layout::level_between(larger, 8, 12), layout::Level::network);
}

TEST(RunTrace, HasTheTracksOfARun) {
  auto swept = swept_run();
  auto run = swept.run;
  run.cluster.network = {0.5, 0};
  run.stages = stage_work(swept.profile, run.plan);
  run.records_trace = true;
  run.steps = 2;
  const auto trace = nlohmann::json::parse(trace_of(simulate_run(run)));
  std::map<std::string, int> counts;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "M") ++counts[event["name"].get<std::string>()];
    const bool is_second_step = event["name"] == "step" && event["args"]["step"] == 1;
    EXPECT_TRUE(!is_second_step || event["ts"] > 0);
  }
  EXPECT_EQ(counts["step"], 8 * 2);
  EXPECT_EQ(counts["forward"], 8 * 8 * 2);
  EXPECT_EQ(counts["backward"], 8 * 8 * 2);
  EXPECT_EQ(counts["optimizer"], 8 * 2);
  EXPECT_EQ(counts["0F3"], 2 * 2);
  EXPECT_EQ(counts["2SEND_F3"], 2 * 2);
  EXPECT_EQ(trace["otherData"]["clock_error_microseconds"].size(), 8u);
}

}  // namespace
}  // namespace troika::plan
