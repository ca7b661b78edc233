// Predictions of a plan beside the measured times of its run.
#include <gmock/gmock.h>

#include "troika/train/profile/automatic_plan.h"
#include "troika/train/profile/plan_report.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

TEST(PlanReport, ComparesPredictionsWithTheRun) {
  plan::StepProblem problem{.profiles = {{.optimizer_bytes_per_second = 1e3,
                                          .blocks = {{.name = "all",
                                                      .forward = 0.1,
                                                      .backward_input = 0.1,
                                                      .backward_weight = 0.1,
                                                      .parameter_bytes = 100}}}},
                            .cluster = layout::Cluster::uniform(1, 2),
                            .global_batch = 2};
  plan::StepModel model(problem);
  plan::StepSearch found;
  found.best = model.price({.devices = 2}, {{1, 2}});
  const AutomaticPlan automatic{.model = std::move(model), .found = found};
  observe::RunSummary summary;
  summary.median_step_milliseconds = 500;
  summary.phase_milliseconds = {{"forward", {100, 200}}, {"optimizer", {100, 100}}};
  summary.peak_tensor_bytes = {100, 400};
  EXPECT_EQ(compare(automatic, summary),
            "plan auto: predicted and measured\n"
            "  step                      400.00 ms    500.00 ms    -20.0 %\n"
            "  forward, rank 0           100.00 ms    100.00 ms     +0.0 %\n"
            "  forward, rank 1           100.00 ms    200.00 ms    -50.0 %\n"
            "  optimizer, rank 0         100.00 ms    100.00 ms     +0.0 %\n"
            "  optimizer, rank 1         100.00 ms    100.00 ms     +0.0 %\n"
            "  memory, rank 0                200 B        100 B   +100.0 %\n"
            "  memory, rank 1                200 B        400 B    -50.0 %");
}

TEST(PlanReport, ComparesTheStagesOfAPipeline) {
  const auto block = [](const char* name, double seconds) {
    return layout::ProfiledBlock{.name = name,
                                 .forward = seconds,
                                 .backward_input = seconds,
                                 .backward_weight = seconds,
                                 .parameter_bytes = 100};
  };
  plan::StepProblem problem{.profiles = {{.micro_batch = 1,
                                          .optimizer_bytes_per_second = 1e3,
                                          .blocks = {block("a", 0.1), block("b", 0.2)}}},
                            .cluster = layout::Cluster::uniform(1, 2),
                            .global_batch = 2};
  plan::StepModel model(problem);
  plan::StepSearch found;
  found.best = model.price({.family = plan::StepFamily::pipeline, .devices = 2}, {{1, 1}, {2, 1}});
  const AutomaticPlan automatic{.model = std::move(model), .found = found};
  observe::RunSummary summary;
  summary.phase_milliseconds = {{"backward", {1600, 1600}}, {"optimizer", {100, 200}}};
  summary.bubble = {0.5, 0.25};
  const auto text = compare(automatic, summary);
  EXPECT_THAT(text, HasSubstr("\n  passes, rank 0            600.00 ms    800.00 ms    -25.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  passes, rank 1           1200.00 ms   1200.00 ms     +0.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  waits, rank 1 "));
  EXPECT_THAT(text, HasSubstr("\n  optimizer, rank 1         100.00 ms    200.00 ms    -50.0 %"));
}

// Two ranks that a link of 20 bytes a second joins compute a block that takes 0.6 s on one rank.
AutomaticPlan plan_of_two(layout::ProfiledBlock block, const plan::StepSettings& settings) {
  block.forward = block.backward_input = block.backward_weight = 0.2;
  block.parameter_bytes = 100;
  plan::StepProblem problem{
      .profiles = {{.micro_batch = 1, .optimizer_bytes_per_second = 1e3, .blocks = {block}}},
      .cluster = layout::Cluster::uniform(1, 2),
      .global_batch = 1,
      .cuts_layers = true};
  problem.cluster.host = problem.cluster.group = {.latency = 0, .bandwidth = 20};
  plan::StepModel model(problem);
  plan::StepSearch found;
  found.best = model.price(settings, {{1, 1}});
  return {.model = std::move(model), .found = found};
}

// Each rank computes half of the block. The sums of 4 bytes are rings of 2 parts, which take 0.2 s.
TEST(PlanReport, ComparesThePassesOfATensorAxis) {
  const auto automatic = plan_of_two({.name = "all",
                                      .tensor = layout::TensorCut{.time_share = 1,
                                                                  .parameter_share = 1,
                                                                  .forward_sums = 1,
                                                                  .backward_sums = 2,
                                                                  .sum_bytes = 4}},
                                     {.devices = 2, .axes = {.tensor = 2}});
  observe::RunSummary summary;
  summary.phase_milliseconds = {
      {"forward", {300, 150}}, {"backward", {600, 600}}, {"optimizer", {50, 100}}};
  const auto text = compare(automatic, summary);
  EXPECT_THAT(text, HasSubstr("\n  forward, rank 0           300.00 ms    300.00 ms     +0.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  forward, rank 1           300.00 ms    150.00 ms   +100.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  backward, rank 0          600.00 ms    600.00 ms     +0.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  optimizer, rank 1          50.00 ms    100.00 ms    -50.0 %"));
}

// Each rank computes half of the tokens. A message of 4 bytes takes 0.2 s. Attention hides 0.025 s
// of that in the forward pass. In the backward pass, it hides 0.05 s of two of three messages. ZeRO
// shares the optimizer's states among the ranks of the axis.
TEST(PlanReport, ComparesThePassesOfAContextAxis) {
  const auto automatic = plan_of_two(
      {.name = "all",
       .context =
           layout::ContextCut{
               .time_share = 1, .attention_share = 0.5, .pair_bytes = 8, .pair_gradient_bytes = 8}},
      {.zero_stage = 1, .devices = 2, .axes = {.context = 2}});
  observe::RunSummary summary;
  summary.phase_milliseconds = {
      {"forward", {275, 550}}, {"backward", {700, 350}}, {"optimizer", {50, 100}}};
  const auto text = compare(automatic, summary);
  EXPECT_THAT(text, HasSubstr("\n  forward, rank 0           275.00 ms    275.00 ms     +0.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  forward, rank 1           275.00 ms    550.00 ms    -50.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  backward, rank 0          700.00 ms    700.00 ms     +0.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  backward, rank 1          700.00 ms    350.00 ms   +100.0 %"));
  EXPECT_THAT(text, HasSubstr("\n  optimizer, rank 0          50.00 ms     50.00 ms     +0.0 %"));
}

}  // namespace
}  // namespace troika::train
