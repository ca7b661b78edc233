#include "troika/plan/search/step_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "tests/layout/cluster_levels.h"
#include "tests/plan/random_chains.h"
#include "tests/plan/step_problem.h"
#include "tests/support/errors.h"
#include "troika/plan/memory/range_maximum.h"

namespace troika::plan {
namespace {

using testing::ElementsAre;

TEST(StepModel, AddsUpAPipeline) {
  // Two equal stages of 4 s, 8 micro-batches: (8 + 1) * 4 s. Messages of 10 us there and back, once
  // and for every two of the other micro-batches: here four times in all, as the first stage waits
  // for the gradients of micro-batches 0, 2, 4 and 6.
  const StepModel model(problem_of({2, 2, 2, 2}, 2, 8));
  const auto plan = model.price({.family = StepFamily::pipeline, .devices = 2}, {{2, 1}, {4, 1}});
  EXPECT_DOUBLE_EQ(plan.seconds, 36 + 4 * 2e-5);
  EXPECT_DOUBLE_EQ(model.estimate(plan.settings, plan.stages).seconds, 36 + (1 + 7 / 2.0) * 2e-5);
  // Parameters, gradients, activations of two blocks for two micro-batches and then for one, and
  // the output that crosses the cut.
  EXPECT_THAT(plan.memory_bytes, ElementsAre(4000 + 400 + 10, 4000 + 200 + 10));
  // The latency of zb-h1 is F + I - W, 2 s less than 4 s. The last stage also keeps half of the
  // activations of the micro-batch whose weight part it puts off, and its input.
  auto zero_bubble = plan.settings;
  zero_bubble.family = StepFamily::zero_bubble;
  const auto shorter = model.price(zero_bubble, plan.stages);
  EXPECT_DOUBLE_EQ(shorter.seconds, 8 * 4 + 2 + 2 * 2e-5);
  EXPECT_THAT(shorter.memory_bytes, ElementsAre(4410, 4320));
  // Without flushes, the pipeline does not fill and drain in each step, and the first stage keeps a
  // version of its 2000 bytes of parameters more.
  auto no_flushes = problem_of({2, 2, 2, 2}, 2, 8);
  no_flushes.weights = layout::StageWeights::stashed;
  const auto steady =
      StepModel(no_flushes).price({.family = StepFamily::no_flushes, .devices = 2}, plan.stages);
  EXPECT_DOUBLE_EQ(steady.seconds, 8 * (4 + 1e-5));
  EXPECT_THAT(steady.memory_bytes, ElementsAre(4410 + 2000, 4210));
}

// Two blocks, of which each fills a bucket with its gradients, on two devices.
StepProblem large_problem() {
  auto problem = problem_of({4, 4}, 2, 2);
  for (auto& block : problem.profiles[0].blocks) block.parameter_bytes = 1e8;
  problem.cluster.group.bandwidth = 1e11;
  return problem;
}

TEST(StepModel, HidesAveragesBehindTheBackwardPass) {
  auto problem = large_problem();
  const StepModel model(problem);
  // A ring of two sends each half twice: 2 * 1e8 / 1e11 s, of which the last block's half is
  // hidden.
  const StepSettings both{.devices = 2};
  EXPECT_DOUBLE_EQ(model.price(both, {{2, 2}}).seconds, 8 + 1e-3);
  problem.cluster.group.bandwidth = 1e7;
  // 20 s, of which the last block's backward pass hides 2 s.
  EXPECT_DOUBLE_EQ(StepModel(problem).price(both, {{2, 2}}).seconds, 8 + 18);
  // Devices at half the rate take twice as long, and hide twice as much.
  problem.profiles[0].device_flops = 2;
  problem.cluster.devices[0].flops = 1;
  EXPECT_DOUBLE_EQ(StepModel(problem).price(both, {{2, 2}}).seconds, 16 + 16);
}

TEST(StepModel, ChargesTheOptimizerAndWhatFollowsIt) {
  auto problem = large_problem();
  problem.profiles[0].optimizer_bytes_per_second = 1e8;
  const StepModel model(problem);
  // 200 MB of parameters; ranks with shards step half of them. ZeRO reduces and scatters in 1
  // ms, of which half is hidden, and gathers in 1 ms after the step.
  EXPECT_DOUBLE_EQ(model.price({.devices = 2}, {{2, 2}}).seconds, 8 + 1e-3 + 2);
  EXPECT_DOUBLE_EQ(model.price({.zero_stage = 1, .devices = 2}, {{2, 2}}).seconds, 8 + 1.5e-3 + 1);
  problem.profiles[0].in_step.overlap = 0;
  EXPECT_DOUBLE_EQ(StepModel(problem).price({.devices = 2}, {{2, 2}}).seconds, 8 + 2e-3 + 2);
  problem.profiles[0].gather_bytes_per_second = 5e7;
  const StepModel copies(problem);
  EXPECT_DOUBLE_EQ(copies.price({.zero_stage = 1, .devices = 2}, {{2, 2}}).seconds,
                   8 + 2e-3 + 1 + 4);
  problem.profiles[0].in_step.overlap = 1;
  problem.profiles[0].in_step.first_micro_batch_factor = 1.5;
  EXPECT_DOUBLE_EQ(StepModel(problem).price({.devices = 2}, {{2, 2}}).seconds, 8 + 4 + 1e-3 + 2);
}

// The workspace of an early block does not add to the activations of later blocks.
TEST(StepModel, CountsTheMostBytesOfAStage) {
  auto problem = problem_of({1, 1}, 1, 1);
  const auto bytes = [&](bool recompute) {
    return StepModel(problem).price({.recompute = recompute}, {{2, 1}}).memory_bytes[0] - 2 * 2000;
  };
  problem.profiles[0].blocks[0].workspace_bytes = 150;
  EXPECT_EQ(bytes(false), 250);
  EXPECT_EQ(bytes(true), 250) << "no input, and the first block";
  problem.profiles[0].blocks[1].workspace_bytes = 70;
  EXPECT_EQ(bytes(false), 270);
  problem.profiles[0].blocks[0].workspace_bytes = 0;
  EXPECT_EQ(bytes(true), 10 + 100 + 70);
}

TEST(StepModel, SharesAHostsPort) {
  auto problem = problem_of({1, 1}, 4, 4);
  problem.cluster = layout::Cluster::uniform(2, 2);
  problem.cluster.network = {0.5, 10};
  const StepModel model(problem);
  const StepSettings settings{.family = StepFamily::pipeline, .devices = 4};
  // Both replicas send 10 bytes at 10 bytes a second through the port of their host, at the same
  // time.
  const auto wire = model.boundary(settings, 1, 0, 2, 2);
  EXPECT_DOUBLE_EQ(wire.latency, 2 * 2.5);
  EXPECT_DOUBLE_EQ(wire.ports[static_cast<size_t>(layout::Level::network)], 1.0);
}

// Counts the messages of all pairs of ranks, one micro-batch after the other.
TEST(StepModel, CountsTheMessagesThroughPorts) {
  Draws draws(1);
  for (int round = 0; round < 200; ++round) {
    auto problem = problem_of({1, 1}, 1, 60);
    problem.cluster.devices.clear();
    problem.cluster.hosts = {"0", "1", "2"};
    for (int i = 0; i < 9; ++i) {
      problem.cluster.devices.push_back({.host = draws.from(0, 2), .group = draws.from(0, 1)});
    }
    problem.cluster.group = {0.125, 16};
    problem.cluster.host = {0.25, 8};
    problem.cluster.network = {0.5, 4};
    const int used = draws.from(0, 2), first = draws.from(1, 4), second = draws.from(1, 3);
    const int period = std::lcm(first, second);
    std::map<int, int> leaving, arriving;
    double latency = 0, port = 0;
    for (int i = 0; i < period; ++i) {
      const int from = used + i % first, to = used + first + i % second;
      const auto& link = layout::link_between(problem.cluster, from, to);
      int most = period / std::min(first, second);
      if (layout::level_between(problem.cluster, from, to) == layout::Level::network) {
        most = std::max(++leaving[problem.cluster.devices_of(from).host],
                        ++arriving[problem.cluster.devices_of(to).host]);
      }
      const double seconds = most * 10 * link.seconds_per_byte() / period;
      port = std::max(port, seconds);
      const double message =
          std::max(10 * link.seconds_per_byte(), seconds * std::min(first, second));
      latency = std::max(latency, 2 * (link.latency + message));
    }
    const StepModel model(problem);
    const auto wire =
        model.boundary({.family = StepFamily::pipeline, .devices = 9}, 1, used, first, second);
    EXPECT_DOUBLE_EQ(wire.latency, latency) << round;
    EXPECT_DOUBLE_EQ(std::ranges::max(wire.ports), port) << round;
  }
}

TEST(RangeMaximum, IsTheLargestOfTheRange) {
  const std::vector<double> values{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  const RangeMaximum maxima(values);
  for (size_t begin = 0; begin < values.size(); ++begin) {
    for (size_t end = begin + 1; end <= values.size(); ++end) {
      const auto at = [&](size_t i) { return values.begin() + static_cast<int64_t>(i); };
      EXPECT_EQ(maxima.of(begin, end), *std::max_element(at(begin), at(end)));
    }
  }
}

// Every place is tried, although there are many devices.

}  // namespace
}  // namespace troika::plan
