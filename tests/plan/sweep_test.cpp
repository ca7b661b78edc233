// Sweeps and traces of simulated runs: the cases that they leave out and refuse.
#include "troika/plan/simulation/sweep.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/run_trace.h"

namespace troika::plan {
namespace {

using layout::Cluster;
using layout::Mesh;

TEST(Sweep, LeavesOutDevicesThatDoNotGoWithThePlan) {
  SweptRun swept;
  swept.profile.blocks = {{.name = "a", .forward = 1, .parameter_bytes = 4000}};
  swept.run.cluster = Cluster::uniform(2, 4);
  swept.run.plan.mesh = Mesh::parse("data=8");
  swept.run.plan.exchange = {
      .method = layout::ExchangeMethod::zero, .zero_stage = 3, .zero_group = 4};
  // Each of four ranks has a quarter of 4000 bytes of parameters, and gathers all.
  for (auto& row : swept.run.cluster.devices) row.memory_bytes = 12'000;
  const auto points = sweep_devices(swept, {1, 2, 4, 6, 8});
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].mesh, "data=4 pipeline=1");
  EXPECT_EQ(points[1].mesh, "data=8 pipeline=1");
  EXPECT_EQ(points[0].speed_up, std::nullopt);
  EXPECT_TRUE(points[0].fits);
  for (auto& row : swept.run.cluster.devices) row.memory_bytes = 1;
  EXPECT_FALSE(sweep_devices(swept, {4})[0].fits);
  EXPECT_ERROR(sweep_devices(swept, {1, 6}), ErrorKind::usage,
               "[plan] devices of a sweep; got 1,6, expected a number on which mesh data=8 and "
               "schedule one_stage run");
  for (const auto* axes : {"data=4 expert=2", "pipeline=2 expert=2"}) {
    swept.run.plan = {.mesh = Mesh::parse(axes)};
    EXPECT_ERROR(sweep_devices(swept, {1, 2}), ErrorKind::usage,
                 std::string("[plan] mesh of a sweep over devices; got ") + axes +
                     ", expected the axes data, pipeline, tensor and context alone");
  }
}

TEST(Sweep, NamesTheRankThatLacksMostMemory) {
  auto cluster = Cluster::uniform(2, 1);
  RunSimulation simulation;
  simulation.ranks = {{.peak_bytes = 10}, {.peak_bytes = 20}};
  EXPECT_EQ(rank_beyond_memory(simulation, cluster), std::nullopt);  // unknown
  for (auto& row : cluster.devices) row.memory_bytes = 9;
  EXPECT_EQ(rank_beyond_memory(simulation, cluster), 1);
  cluster.devices[1].memory_bytes = 20;
  EXPECT_EQ(rank_beyond_memory(simulation, cluster), 0);
}

TEST(RunTrace, RefusesTimesThatItCannotHave) {
  RunSimulation simulation;
  simulation.step_seconds = {1e10};
  simulation.ranks.emplace_back();
  simulation.spans = {{.track = "compute", .name = "step", .begin = 0, .end = 1e10}};
  EXPECT_ERROR(trace_of(simulation), ErrorKind::usage,
               "[plan] seconds of a trace; got 1e+10, expected at most 9e+09");
}

}  // namespace
}  // namespace troika::plan
