// Forward passes that take turns over a tensor axis: steps against times computed by hand, and the
// search against the simulation.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/plan/cut_runs.h"
#include "tests/plan/random_chains.h"
#include "tests/plan/step_problem.h"
#include "tests/support/errors.h"
#include "troika/plan/search/step_layout.h"

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

TEST(TensorOverlap, PipelinesAreNotSimulated) {
  auto run = three_parts(1, 2);
  run.plan.mesh = layout::Mesh::parse("pipeline=2 tensor=2");
  run.plan.schedule = "gpipe";
  run.cluster = hosts(1, 4);
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] mesh.tensor_overlap of a simulation; got true with mesh.axes pipeline=2 "
               "tensor=2, expected false, or no pipeline axis");
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
      for (const bool recompute : {false, true}) {
        StepSettings settings{.recompute = recompute,
                              .devices = groups * tensor,
                              .axes = axes,
                              .tensor_overlap = true};
        const std::vector<StepStage> stages{{model.blocks(), groups}};
        const auto priced = model.price(settings, stages);
        auto run = run_of(problem.profiles[0], layout_of(model, priced), problem.cluster);
        run.overlap = problem.profiles[0].in_step.overlap;
        run.reference_flops = problem.profiles[0].device_flops;
        const auto simulated = simulate_run(run);
        SCOPED_TRACE(fmt::format("seed {}, {} groups of {}, sequence {}, recompute {}", seed,
                                 groups, tensor, axes.sequence, recompute));
        EXPECT_NEAR(priced.seconds, simulated.seconds, 1e-9 * priced.seconds);
        EXPECT_NEAR(priced.memory_bytes[0], simulated.ranks[0].peak_bytes,
                    1e-9 * priced.memory_bytes[0]);
        EXPECT_LE(model.lower_bound(), priced.seconds * (1 + 1e-9));
        settings.tensor_overlap = false;
        const auto without = model.price(settings, stages);
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
