// Messages between the same two ranks.
#include "troika/plan/simulation/run_flows.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {
namespace {

TEST(RunFlows, SendMessagesToOneRankOneAfterTheOther) {
  auto cluster = layout::Cluster::uniform(3, 1);
  cluster.network = {0.5, 100};
  const ClusterLinks links(cluster);
  RunFlows flows(links);
  const auto message = [](int to, size_t item) {
    return Event{.kind = EventKind::message_arrives, .who = to, .what = item, .bytes = 300};
  };
  flows.send(0, 0, message(1, 7));
  EXPECT_EQ(flows.next_end(0)->time, 3);
  flows.send(1, 0, message(1, 8));
  flows.send(1, 0, message(2, 9));  // shares the sender's port with the first one
  std::vector<std::pair<size_t, double>> arrivals;
  double now = 1;
  while (const auto end = flows.next_end(now)) {
    now = end->time;
    const auto next = flows.finish(*end);
    EXPECT_EQ(next.kind, EventKind::message_arrives);
    arrivals.emplace_back(next.what, next.time);
  }
  // The first has 200 bytes left at 1 s, the one to rank 2 then 100 bytes at 5 s.
  EXPECT_THAT(arrivals, testing::ElementsAre(testing::Pair(7, 5.5), testing::Pair(9, 7.5),
                                             testing::Pair(8, 9.5)));
}

// Two forward passes end at 1 and 2 s; each message takes 3 s.
TEST(RunFlows, LetTheNextStageBeginWithTheFirstMessage) {
  SimulatedRun run;
  run.plan.mesh = layout::Mesh::parse("pipeline=2");
  run.plan.schedule = "gpipe";
  run.plan.micro_batches = 2;
  run.cluster = layout::Cluster::uniform(2, 1);
  run.cluster.network = {0, 100};
  run.stages = {{.passes = {1, 2, 0}, .output_bytes = 300}, {.passes = {3, 2, 0}}};
  run.records_trace = true;
  const auto found = simulate_run(run);
  std::vector<double> begins;
  for (const auto& span : found.spans) {
    if (span.rank == 1 && span.track == std::string("compute")) begins.push_back(span.begin);
  }
  begins.resize(4);  // without the optimizer's step
  EXPECT_THAT(begins, testing::ElementsAre(4, 7, 10, 12));
  EXPECT_DOUBLE_EQ(found.seconds, (1 + 3) + 2 * 3 + 2 + 2 * 3 + 2);
}

}  // namespace
}  // namespace troika::plan
