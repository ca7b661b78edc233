// Forward passes that take turns over a tensor axis: steps against times computed by hand.
#include <gmock/gmock.h>

#include "tests/plan/cut_runs.h"

namespace troika::plan {
namespace {

using layout::TensorCollective;
using layout::TensorTurn;

layout::Plan overlapped_plan(int micro_batches, bool cuts_tokens = false) {
  layout::Plan plan;
  plan.mesh = layout::Mesh::parse("tensor=2");
  plan.stages.sequence_parallel = cuts_tokens;
  plan.stages.tensor_overlap = true;
  plan.micro_batches = micro_batches;
  return plan;
}

// Passes of three parts of 2 s and two sums of so many seconds, on two devices.
SimulatedRun three_parts(double sum_seconds, int micro_batches) {
  SimulatedRun run;
  run.plan = overlapped_plan(micro_batches);
  run.cluster = hosts(1, 2);
  run.cluster.group = {.latency = 0, .bandwidth = 100};
  run.all_reduce = layout::Algorithm::ring;
  const double bytes = 100 * sum_seconds;
  const TensorTurn turn{.seconds = 1.0 / 3, .bytes = bytes};
  run.stages = {{.passes = {6, 0, 0},
                 .forward_sums = {{2, bytes}},
                 .forward_turns = {.turns = {turn, turn}, .seconds_after = 1.0 / 3}}};
  return run;
}

TEST(TensorOverlap, HidesSumsBehindTheOtherPass) {
  const auto simulation = simulate_run(three_parts(1, 2));
  EXPECT_NEAR(simulation.seconds, 12, 1e-9);
  for (const auto& rank : simulation.ranks) {
    EXPECT_NEAR(rank.compute_seconds, 12, 1e-9);
    EXPECT_NEAR(rank.exposed_seconds, 0, 1e-9);
  }
  EXPECT_NEAR(simulation.links[0].bytes, 4 * 100, 1e-9) << "all sums are on the links";
}

// The sums follow each other from 2 s to 14 s, and the last part of the second pass follows them.
TEST(TensorOverlap, WaitsForSumsThatTakeLonger) {
  auto run = three_parts(3, 2);
  run.records_trace = true;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 16, 1e-9);
  EXPECT_NEAR(simulation.ranks[0].compute_seconds, 12, 1e-9);
  EXPECT_NEAR(simulation.ranks[0].exposed_seconds, 4, 1e-9);
  EXPECT_NEAR(simulation.ranks[0].idle_seconds, 0, 1e-9);
  std::vector<std::string> passes;
  std::vector<double> ends;
  for (const auto& span : simulation.spans) {
    if (span.rank != 0) continue;
    if (std::string(span.track) == "passes") passes.push_back(span.name);
    if (span.name == "sums") ends.push_back(*span.end);
  }
  EXPECT_THAT(passes, testing::ElementsAre("0F0+0F1", "0B0", "0B1"));
  EXPECT_THAT(ends, testing::Pointwise(testing::DoubleNear(1e-9), {5.0, 8.0, 11.0, 14.0}));
}

TEST(TensorOverlap, AnOddLastPassRunsAlone) {
  EXPECT_NEAR(simulate_run(three_parts(1, 3)).seconds, 12 + 6 + 2, 1e-9);
  EXPECT_NEAR(simulate_run(three_parts(3, 4)).seconds, 16 + 16, 1e-9);
}

// Two stages of three parts with sums of 1 s, and messages of half a second.
SimulatedRun two_stages(const std::string& schedule, int micro_batches) {
  auto run = three_parts(1, micro_batches);
  run.plan.mesh = layout::Mesh::parse("pipeline=2 tensor=2");
  run.plan.schedule = schedule;
  run.cluster = hosts(2, 2);
  run.cluster.group = {.latency = 0, .bandwidth = 100};
  run.cluster.network = {.latency = 0, .bandwidth = 200};
  run.stages.push_back(run.stages.front());
  run.stages[0].output_bytes = 50;  // of both ranks of a host, over its port
  run.stages[1].input_bytes = 50;
  for (auto& stage : run.stages) stage.activation_bytes = 1000;
  return run;
}

// The second stage has both inputs of its pair from 12 s to 25 s, after 1 s for the messages. The
// third micro-batch leaves the first stage after 20 s, and begins after the pair, at 25 s.
TEST(TensorOverlap, PipelinesPassPairsOn) {
  auto run = two_stages("gpipe", 3);
  run.records_trace = true;
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.seconds, 25 + 8 + 3 * 0.5, 1e-9) << "with the gradients' way back";
  std::vector<std::string> passes;
  std::vector<double> begins;
  for (const auto& span : simulation.spans) {
    if (span.rank != 2 || std::string(span.track) != "passes") continue;
    passes.push_back(span.name);
    begins.push_back(span.begin);
  }
  EXPECT_THAT(passes, testing::ElementsAre("1F0+1F1", "1F2", "1B2", "1B1", "1B0"));
  EXPECT_THAT(begins,
              testing::Pointwise(testing::DoubleNear(1e-9), {13.0, 25.0, 33.0, 33.0, 33.0}));
}

// 1f1b has two pairs on the first stage and one on the last one at a time.
TEST(TensorOverlap, PipelinesKeepTheActivationsOfPairs) {
  auto run = two_stages("1f1b", 8);
  for (auto& stage : run.stages) stage.output_bytes = stage.input_bytes = 0;
  const auto simulation = simulate_run(run);
  EXPECT_EQ(simulation.ranks[0].peak_bytes, 4 * 1000);
  EXPECT_EQ(simulation.ranks[2].peak_bytes, 2 * 1000);
}

TEST(TensorOverlap, EveryScheduleOfARunIsSimulated) {
  for (const std::string name : {"naive", "gpipe", "1f1b", "interleaved", "bfs", "zb-h1", "zb-h2",
                                 "zb-v", "v-half", "v-min", "dualpipe-v"}) {
    auto profile = equal_blocks();
    for (auto& block : profile.blocks) {
      block.tensor =
          layout::TensorCut{.units = 4, .time_share = 0.75, .forward_sums = 2, .sum_bytes = 80};
    }
    auto plan = overlapped_plan(8);
    plan.mesh = layout::Mesh::parse("pipeline=2 tensor=2");
    plan.schedule = name;
    auto run = run_of(profile, plan, hosts(1, 4));
    run.records_trace = true;
    int pairs = 0;
    for (const auto& span : simulate_run(run).spans) {
      const bool is_pass = std::string(span.track) == "passes";
      pairs += is_pass && span.name.find("+") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(pairs, 4 * static_cast<int>(run.stages.size()) * 2) << name;
  }
}

// A second of a sum adds 1 - overlap to the part beside it.
TEST(TensorOverlap, SumsSlowThePassBesideThem) {
  auto run = three_parts(1, 2);
  run.overlap = 0.5;
  EXPECT_NEAR(simulate_run(run).seconds, 12 + 4 * 0.5, 1e-9);
  run.overlap = -0.25;
  EXPECT_NEAR(simulate_run(run).seconds, 12 + 4 * 1.25, 1e-9);
  run = three_parts(3, 2);
  run.overlap = 0.8;
  // 2.5 s for each part but the first and the last one, all beside sums.
  EXPECT_NEAR(simulate_run(run).seconds, 2 + 4 * 3 + 2, 1e-9);
}

// A fast rank waits for the slow one at each sum.
TEST(TensorOverlap, RanksWaitForTheSlowestAtEachSum) {
  auto run = three_parts(1, 2);
  run.disturbances.slow_ranks = {{1, 2.0}};
  const auto simulation = simulate_run(run);
  EXPECT_NEAR(simulation.ranks[0].compute_seconds, 12, 1e-9);
  EXPECT_NEAR(simulation.ranks[1].compute_seconds, 24, 1e-9);
  EXPECT_NEAR(simulation.seconds, 24, 1e-9);
}

TEST(TensorOverlap, PlacesSumsInThePass) {
  auto profile = equal_blocks();
  profile.blocks.resize(3);
  auto& middle = profile.blocks[1];
  middle.tensor = layout::TensorCut{
      .time_share = 0.5, .token_time_share = 0.25, .forward_sums = 2, .sum_bytes = 80};
  // The blocks take 4, 4 * 3/4 and 4 s.
  auto pass = stage_work(profile, overlapped_plan(2))[0].forward_turns;
  ASSERT_EQ(pass.turns.size(), 2u);
  EXPECT_NEAR(pass.turns[0].seconds, 5.5 / 11, 1e-12);
  EXPECT_NEAR(pass.turns[1].seconds, 1.5 / 11, 1e-12);
  EXPECT_NEAR(pass.seconds_after, 4 / 11.0, 1e-12);
  EXPECT_EQ(pass.turns[0].kind, TensorCollective::sum);
  // With sequence parallelism 4 * (1/4 + 3/8), of which 1/2 for tokens.
  pass = stage_work(profile, overlapped_plan(2, true))[0].forward_turns;
  std::vector<double> seconds;
  std::vector<TensorCollective> kinds;
  for (const auto& turn : pass.turns) {
    seconds.push_back(turn.seconds * 10.5);
    kinds.push_back(turn.kind);
    EXPECT_EQ(turn.bytes, 80);
  }
  EXPECT_THAT(seconds, testing::Pointwise(testing::DoubleNear(1e-12), {4.25, 1.0, 0.25, 1.0}));
  EXPECT_THAT(kinds,
              testing::ElementsAre(TensorCollective::gather, TensorCollective::sum_of_tokens,
                                   TensorCollective::gather, TensorCollective::sum_of_tokens));
}

}  // namespace
}  // namespace troika::plan
