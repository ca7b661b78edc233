// The stages that compute whole backward passes where the schedule splits them.
#include "troika/plan/split_backward.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "troika/plan/simulation/run_simulator.h"
#include "troika/plan/simulation/stage_work.h"

namespace troika::plan {
namespace {

using testing::ElementsAre;

layout::Profile four_layers() {
  layout::Profile profile;
  for (int i = 0; i < 4; ++i) {
    profile.blocks.push_back({.name = "block" + std::to_string(i),
                              .forward = 1,
                              .backward_input = 1,
                              .backward_weight = 1,
                              .output_bytes = 10,
                              .saved_bytes = 100,
                              .parameter_bytes = 1000});
  }
  return profile;
}

layout::Plan on_ranks(int ranks, std::string schedule, int micro_batches) {
  layout::Plan plan;
  plan.mesh = layout::Mesh::parse("pipeline=" + std::to_string(ranks));
  plan.schedule = std::move(schedule);
  plan.micro_batches = micro_batches;
  return plan;
}

// As parallel::can_split_backward(), with which a test of room train compares it.
TEST(SplitBackward, IsThatOfARun) {
  const auto splits = [](const layout::Profile& profile, const std::string& recompute = "none") {
    auto plan = on_ranks(3, "zb-h1", 6);
    plan.stages.cut = "block0|block1|block2,block3";
    plan.recompute = recompute;
    std::vector<bool> result;
    for (const auto& stage : stage_work(profile, plan)) result.push_back(stage.splits_backward);
    return result;
  };
  auto profile = four_layers();
  EXPECT_THAT(splits(profile), ElementsAre(false, true, true));
  EXPECT_THAT(splits(profile, "full"), ElementsAre(false, false, false));
  profile.blocks[0].parameter_bytes = 0;
  EXPECT_THAT(splits(profile), ElementsAre(false, false, true)) << "block 0 is not trained";
  for (auto& block : profile.blocks) block.parameter_bytes = 0;
  EXPECT_THAT(splits(profile), ElementsAre(false, true, true)) << "parameters are not told";
  profile.edges = {{0, 2}, {1, 2}, {2, 3}};
  EXPECT_THAT(splits(profile), ElementsAre(false, false, true)) << "block 1 reads the batch";
  profile.blocks[3].has_output_layer = true;
  EXPECT_THAT(splits(profile), ElementsAre(false, false, false));
}

// A stage waits for F + I + W in 1f1b, and for F + I - W in zb-h1 (arXiv 2401.10241, table 1).
// Neither of two stages splits its passes if the last one has an output layer.
TEST(SplitBackward, LeavesPassesWholeInTheSimulation) {
  auto profile = four_layers();
  const auto run_of = [&](const std::string& schedule) {
    SimulatedRun run{.plan = on_ranks(2, schedule, 4), .cluster = layout::Cluster::uniform(2, 1)};
    run.cluster.network = {0, 1e12};
    run.stages = stage_work(profile, run.plan, {.optimizer_bytes_per_second = 1e12});
    return simulate_run(run);
  };
  const auto whole = run_of("1f1b");
  EXPECT_NEAR(whole.seconds, 4 * 6 + 6, 1e-3);
  EXPECT_NEAR(run_of("zb-h1").seconds, 4 * 6 + 2, 1e-3);
  profile.blocks.back().has_output_layer = true;
  EXPECT_NEAR(run_of("zb-h1").seconds, whole.seconds, 1e-3);
  EXPECT_NEAR(run_of("zb-h2").seconds, whole.seconds, 1e-3);
  EXPECT_EQ(run_of("zb-h1").ranks[1].peak_bytes, whole.ranks[1].peak_bytes);
}

}  // namespace
}  // namespace troika::plan
