// Steps simulated event by event: against replays of schedules, and times computed by hand.
#include "troika/plan/simulation/run_simulator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "tests/plan/pipeline_run.h"
#include "tests/support/errors.h"
#include "troika/layout/device_rates.h"
#include "troika/layout/schedules/table.h"
#include "troika/plan/simulation/cluster_links.h"
#include "troika/plan/simulator.h"

namespace troika::plan {
namespace {

using layout::Cluster;
using layout::Mesh;

// Without links, the passes of all schedules begin when layout::replay() says, bit by bit.
TEST(RunSimulator, ReplaysSchedulesWithoutLinks) {
  for (const auto& row : layout::schedule_table()) {
    for (int p = 1; p <= 8; ++p) {
      for (const int m : {1, 2, p, p + 1, 2 * p, 2 * p + 3, 4 * p}) {
        const layout::PipelineShape shape{.ranks = p, .micro_batches = m, .chunks = row.chunks};
        if (row.takes && !row.takes(shape)) continue;
        SCOPED_TRACE(testing::Message() << row.name << ", p " << p << ", m " << m);
        auto run = pipeline_run("pipeline=" + std::to_string(p), std::string(row.name), m);
        const auto schedule = layout::schedule_of(run.plan);
        std::vector<layout::StageTimes> times;
        run.stages.clear();
        for (int stage = 0; stage < p * row.chunks; ++stage) {
          times.push_back({1 + 0.1 * stage, 0.7 + 0.3 * (stage % 3), 0.9, 0});
          run.stages.push_back({.passes = times.back()});
        }
        const auto replayed = simulate(schedule, times);
        const auto simulated = simulate_run(run);
        ASSERT_EQ(simulated.makespan, replayed.makespan);
        ASSERT_EQ(simulated.seconds, replayed.makespan);
        ASSERT_NEAR(simulated.bubble_rate.value(), replayed.bubble_rate, 1e-12);
        for (size_t rank = 0; rank < replayed.ranks.size(); ++rank) {
          ASSERT_NEAR(simulated.ranks[rank].compute_seconds, replayed.busy[rank], 1e-9);
        }
        // A link that is a mere delay is a message's time.
        run.cluster.network.latency = 0.25;
        for (auto& one : times) one.message = 0.25;
        ASSERT_EQ(simulate_run(run).makespan, simulate(schedule, times).makespan);
      }
    }
  }
}

TEST(RunSimulator, MessagesShareThePortsOfHosts) {
  // Two pipelines whose stages are on two hosts: both messages leave host 0 at once.
  auto run = pipeline_run("pipeline=2 data=2", "gpipe", 1);
  run.cluster = Cluster::uniform(2, 2);
  run.cluster.network = {0.5, 100};
  run.stages = {{.passes = {1, 2, 0}, .output_bytes = 100}};
  auto alone = run;
  alone.plan.mesh = Mesh::parse("pipeline=2");
  alone.cluster = Cluster::uniform(2, 1);
  alone.cluster.network = run.cluster.network;
  EXPECT_DOUBLE_EQ(simulate_run(alone).seconds, 1 + 1.5 + 3 + 1.5 + 2);
  const auto shared = simulate_run(run);
  EXPECT_DOUBLE_EQ(shared.seconds, 1 + 2.5 + 3 + 2.5 + 2);
  EXPECT_EQ(shared.ranks[0].sent_bytes, 100);
  EXPECT_EQ(shared.ranks[0].received_bytes, 100);
  EXPECT_DOUBLE_EQ(shared.ranks[0].idle_seconds, 8);
  const auto names = ClusterLinks(run.cluster).names();
  const auto out = std::ranges::find(names, "host host-0, network, out") - names.begin();
  EXPECT_EQ(shared.links[static_cast<size_t>(out)].bytes, 200);
  EXPECT_DOUBLE_EQ(shared.links[static_cast<size_t>(out)].busy_seconds, 2);
}

TEST(RunSimulator, BucketsOverlapTheBackwardPass) {
  auto run = pipeline_run("data=2", "one_stage", 2);
  run.cluster.network = {0, 100};
  // A ring of two moves 100 bytes of each rank in each bucket: 1 s.
  run.stages = {{.passes = {1, 1, 1},
                 .optimizer_seconds = 0.5,
                 .buckets = {{100, 1.5}, {100, 0}},
                 .parameter_bytes = 200}};
  run.records_trace = true;
  const auto found = simulate_run(run);
  // Two micro-batches take 6 s. The first bucket's second lies within them.
  EXPECT_DOUBLE_EQ(found.seconds, 6 + 1 + 0.5);
  EXPECT_DOUBLE_EQ(found.ranks[0].exposed_seconds, 1);
  EXPECT_DOUBLE_EQ(found.ranks[0].compute_seconds, 6.5);
  std::vector<double> begins;
  for (const auto& span : found.spans) {
    if (span.name == "bucket" && span.rank == 1) begins.push_back(span.begin);
  }
  EXPECT_EQ(begins, (std::vector<double>{4.5, 6}));
  // So does a pipeline, in each step, except after the parts of backward passes.
  run.plan.mesh = Mesh::parse("pipeline=1 data=2");
  run.steps = 2;
  for (const std::string schedule : {"gpipe", "pipedream", "zb-h1"}) {
    run.plan.schedule = schedule;
    EXPECT_DOUBLE_EQ(simulate_run(run).seconds, schedule == "zb-h1" ? 2 * 8.5 : 2 * 7.5);
  }
}

TEST(RunSimulator, ShardsWithZero) {
  auto run = pipeline_run("data=4", "one_stage", 1);
  run.cluster.network = {0, 100};
  run.all_reduce = layout::Algorithm::ring;
  run.stages = {
      {.passes = {1, 1, 1}, .optimizer_seconds = 4, .buckets = {{400, 0}}, .parameter_bytes = 400}};
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, 3 + 6 + 4);
  auto& exchange = run.plan.exchange;
  exchange.method = layout::ExchangeMethod::zero;
  // Reduce-scatter and gather take 3/4 of 400 bytes each; a rank steps over a quarter.
  exchange.zero_stage = 2;
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, 3 + 3 + 1 + 3);
  // In groups of two: half of the bytes, then an all-reduce of the half between the groups.
  exchange.zero_group = 2;
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, 3 + (2 + 2) + 2 + 2);
  // Each pass gathers the parameters, in 3 s, and then computes its last quarter.
  exchange = {.method = layout::ExchangeMethod::zero, .zero_stage = 3};
  run.stages[0].share_after_gather = 0.25;
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, (3 + 0.25) + (3 + 0.5) + 3 + 1);
  run.overlap = 0;
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, (3 + 1) + (3 + 2) + 3 + 1);
  run.stages[0].gather_seconds = 1;
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, (4 + 1) + (4 + 2) + 3 + 1);
}

TEST(RunSimulator, CollectivesSlowThePassesBesideThem) {
  auto run = pipeline_run("data=2", "one_stage", 1);
  run.cluster.network = {0, 100};
  run.all_reduce = layout::Algorithm::ring;
  // The first bucket takes the last second of the backward pass; the second one follows it.
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{100, 1}, {100, 0}}, .parameter_bytes = 200}};
  const auto seconds = [&](double overlap) {
    run.overlap = overlap;
    const auto found = simulate_run(run);
    EXPECT_NEAR(found.ranks[0].compute_seconds, 3, 1e-5);
    EXPECT_NEAR(found.ranks[0].idle_seconds, 0, 1e-5);
    return found.seconds;
  };
  EXPECT_NEAR(seconds(1), 3 + 1, 1e-5);
  EXPECT_NEAR(seconds(0.5), 3.5 + 1, 1e-5);
  EXPECT_NEAR(seconds(0), 4 + 1, 1e-5);
  EXPECT_NEAR(seconds(-1), 5 + 1, 1e-5);
}

TEST(RunSimulator, LocalStepsAverageNowAndThen) {
  auto run = pipeline_run("data=2", "one_stage", 1);
  run.cluster.network = {0, 100};
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{100, 0}}, .parameter_bytes = 100}};
  run.plan.exchange.method = layout::ExchangeMethod::local_steps;
  run.plan.exchange.period = 2;
  run.plan.exchange.warmup_steps = 1;
  run.steps = 4;
  EXPECT_THAT(simulate_run(run).step_seconds, testing::ElementsAre(4, 3, 4, 3));
}

TEST(RunSimulator, StagesWithDifferentReplicasShareMicroBatches) {
  // Stage 0 takes twice as long, on two ranks: each runs every other micro-batch.
  auto run = pipeline_run("pipeline=2 data=2-1", "1f1b", 8);
  run.stages = {{.passes = {2, 2, 2}}, {.passes = {1, 1, 1}}};
  const auto found = simulate_run(run);
  EXPECT_DOUBLE_EQ(found.ranks[0].compute_seconds, 4 * 6);
  EXPECT_DOUBLE_EQ(found.ranks[1].compute_seconds, 4 * 6);
  EXPECT_DOUBLE_EQ(found.ranks[2].compute_seconds, 8 * 3);
  EXPECT_GE(found.seconds, 24 + 2 + 4);
  EXPECT_LT(found.seconds, 8 * 9);
}

TEST(RunSimulator, SlowDevicesHoldAllUp) {
  auto run = pipeline_run("data=4", "one_stage", 1);
  run.stages = {{.passes = {1, 1, 1}, .optimizer_seconds = 1, .buckets = {{100, 0}}}};
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, 4);
  run.disturbances.slow_ranks = {{2, 1.5}};
  const auto slow = simulate_run(run);
  EXPECT_DOUBLE_EQ(slow.seconds, 6);
  EXPECT_DOUBLE_EQ(slow.ranks[0].exposed_seconds, 1.5);
  EXPECT_DOUBLE_EQ(slow.ranks[2].exposed_seconds, 0);
  // So does a device of half the rate.
  run.disturbances = {};
  run.cluster.devices = {{.host = 0, .count = 3, .flops = 2e12}, {.host = 1, .flops = 1e12}};
  EXPECT_DOUBLE_EQ(simulate_run(run).seconds, 8);
}

TEST(RunSimulator, JitterHasItsMeanAndItsSeed) {
  auto run = pipeline_run("data=1", "one_stage", 1);
  run.steps = 4000;
  run.disturbances = {.jitter = 0.2, .seed = 5};
  const auto found = simulate_run(run);
  double sum = 0, squares = 0;
  for (const double step : found.step_seconds) {
    sum += step;
    squares += step * step;
  }
  const double mean = sum / run.steps;
  EXPECT_NEAR(mean, 3, 0.03);
  // A forward pass of 1 s and a backward pass of 2 s.
  EXPECT_NEAR(std::sqrt(squares / run.steps - mean * mean), 0.2 * std::sqrt(1 + 4), 0.03);
  EXPECT_EQ(simulate_run(run).step_seconds, found.step_seconds);
  run.disturbances.seed = 6;
  EXPECT_NE(simulate_run(run).step_seconds, found.step_seconds);
  // The requested fraction of many devices is slow.
  run = pipeline_run("data=1000", "one_stage", 1);
  run.disturbances = {.straggler_share = 0.1, .straggler_factor = 2, .seed = 5};
  const auto slow = simulate_run(run);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(slow.ranks, 6.0, &RankUse::compute_seconds)),
              100, 30);
}

TEST(RunSimulator, CountsMemory) {
  auto run = pipeline_run("pipeline=2", "gpipe", 3);
  run.stages = {{.passes = {1, 1, 1},
                 .output_bytes = 10,
                 .resident_bytes = 1000,
                 .activation_bytes = 100,
                 .workspace_bytes = 7}};
  const auto found = simulate_run(run);
  EXPECT_EQ(found.ranks[0].peak_bytes, 1000 + 3 * 100 + 7 + 10);
  EXPECT_EQ(found.ranks[1].peak_bytes, 1000 + 3 * 100 + 7);
  run.plan.schedule = "1f1b";
  EXPECT_EQ(simulate_run(run).ranks[1].peak_bytes, 1000 + 100 + 10 + 7);
}

// Messages add to what ranks keep, and a pass replaces those that it takes, also where two passes
// begin together and where a stage's neighbour is on its own rank.
TEST(RunSimulator, CountsMessagesOnTop) {
  auto names = layout::schedule_names();
  names.push_back(layout::kCustomSchedule);
  for (const auto& name : names) {
    auto run = pipeline_run("pipeline=2", name, 8);
    if (name == layout::kCustomSchedule) {
      // Rank 1 has stages 1 and 2. Its pass 2F1 takes what 1F1 made there, and 2B0 a message.
      run.plan.micro_batches = 2;
      run.plan.actions =
          "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 (2F1;2B0)OVERLAP_F_B 2B1 1B0 1B1\n";
    }
    run.stages[0].activation_bytes = 100;
    run.steps = 2;
    const auto without = simulate_run(run);
    run.stages[0].output_bytes = 10;
    const auto with = simulate_run(run);
    // Four activations and the gradient that 2B0 takes.
    if (name == layout::kCustomSchedule) {
      EXPECT_EQ(with.ranks[1].peak_bytes, 4 * 100 + 10);
    }
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_GE(with.ranks[rank].peak_bytes, without.ranks[rank].peak_bytes) << name;
      EXPECT_LE(with.ranks[rank].peak_bytes, without.ranks[rank].peak_bytes + 8 * 2 * 10) << name;
    }
  }
}

// The rates of devices mean the same in plans and in simulations.
TEST(RunSimulator, ScalesTimesByTheRatesOfDevices) {
  auto run = pipeline_run("data=2", "one_stage", 1);
  run.cluster.devices[0].flops = 2;
  const auto seconds = [&] { return simulate_run(run).seconds; };
  // A device of unknown rate takes as long as measured.
  EXPECT_EQ(layout::device_slowness(run.cluster, 4), (std::vector<double>{2, 1}));
  run.reference_flops = 4;
  EXPECT_EQ(seconds(), 6);
  // Without a rate of the measured device, it is the fastest one.
  run.reference_flops = 0;
  EXPECT_EQ(seconds(), 3);
  run.cluster.devices[1].flops = 8;
  EXPECT_EQ(layout::device_slowness(run.cluster, 0), (std::vector<double>{4, 1}));
  EXPECT_EQ(seconds(), 12);
}

// The groups of ZeRO's ranks with the same shard lie on one host and on several, so their averages
// have other algorithms.
TEST(RunSimulator, AveragesShardsWithinAndBetweenHosts) {
  auto run = pipeline_run("data=8", "one_stage", 1);
  run.plan.exchange.method = layout::ExchangeMethod::zero;
  run.plan.exchange.zero_stage = 1;
  run.plan.exchange.zero_group = 2;
  run.cluster.hosts = {"a", "b", "c", "d", "e"};
  run.cluster.devices.clear();
  for (int rank = 0; rank < 8; ++rank) {
    run.cluster.devices.push_back({.host = rank % 2 == 0 ? 0 : 1 + rank / 2});
  }
  run.cluster.group = {0, 1};
  run.cluster.network = {100, 1e9};
  run.stages = {{.passes = {1, 1, 1}, .buckets = {{80, 0}}, .parameter_bytes = 80}};
  EXPECT_GT(simulate_run(run).seconds, 3 + 100);
}

TEST(RunSimulator, RefusesContradictions) {
  auto run = pipeline_run("pipeline=2 data=4", "gpipe", 3);
  run.cluster = Cluster::uniform(1, 7);
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] devices of the cluster; got 7, expected at least 8, the ranks of mesh "
               "pipeline=2 data=4");
  run.cluster = Cluster::uniform(1, 8);
  run.stages.resize(3);
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] stages of a simulation; got 3, expected one for all, or 2, as schedule "
               "gpipe has");
  run.stages.resize(2);
  run.disturbances.slow_ranks = {{8, 2}};
  EXPECT_ERROR(simulate_run(run), ErrorKind::usage,
               "[plan] a slow rank; got rank 8 by 2, expected one of 8 ranks, by a factor above 0");
  run.disturbances = {};
  run.plan.mesh = Mesh::parse("pipeline=2 expert=2");
  EXPECT_ERROR(
      simulate_run(run), ErrorKind::usage,
      "[plan] mesh of a simulation; got pipeline=2 expert=2, expected axes pipeline, data, "
      "context and tensor alone");
}

// 128 pipelines of 8 stages on 128 hosts of 8 devices.
TEST(RunSimulator, SimulatesAThousandRanks) {
  auto run = pipeline_run("data=128 pipeline=8", "1f1b", 32);
  run.cluster = Cluster::uniform(128, 8);
  run.cluster.group = {2e-6, 200e9};
  run.cluster.network = {1e-5, 25e9};
  run.all_reduce = layout::Algorithm::ring;
  run.stages = {{.passes = {0.01, 0.01, 0.01},
                 .optimizer_seconds = 0.01,
                 .output_bytes = 50e6,
                 .buckets = {{50e6, 0}, {50e6, 0}},
                 .parameter_bytes = 100e6}};
  // Each pipeline lies on one host. At the end the rings of the first two stages share its port;
  // those of the others had their turn before.
  const auto inside = simulate_run(run);
  const double passes = (32 + 7) * 0.03, hops = 7 * 2 * (2e-6 + 50e6 / 200e9);
  EXPECT_GT(inside.seconds, passes + hops);
  const double all_rings = 8 * 2 * 100e6 / 25e9 + 2 * 2 * 127 * 1e-5;
  EXPECT_LT(inside.seconds, passes + 2 * hops + all_rings + 0.01);
  // Eight pipelines cross each port between hosts, all at once.
  run.plan.mesh = Mesh::parse("pipeline=8 data=128");
  const auto across = simulate_run(run);
  EXPECT_GT(across.seconds, inside.seconds + 7 * 2 * 8 * 50e6 / 25e9);
  // If they are not in step, they wait less for each other.
  run.disturbances = {.jitter = 0.05, .seed = 1};
  EXPECT_LT(simulate_run(run).seconds, across.seconds);
}

}  // namespace
}  // namespace troika::plan
