#include "troika/train/run/run_plan.h"

#include <gmock/gmock.h>

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::Not;

const RunPlan kPlan{.name = "quickstart",
                    .model = "Net",
                    .parameters = 272'474,
                    .trainable = 272'474,
                    .training_samples = 9'984,
                    .validation_samples = 2'000,
                    .steps = 468,
                    .steps_per_epoch = 156,
                    .batch = 64,
                    .ranks = 2,
                    .replicas = 2,
                    .backend = "shm",
                    .device = "cpu",
                    .strategy = "ddp",
                    .precision = "32-true",
                    .predicted_bytes = {52 << 20, 52 << 20},
                    .folder = "runs/quickstart"};

TEST(RunPlan, IsABlockOfLines) {
  EXPECT_EQ(describe(kPlan),
            "quickstart starts\n"
            "  model      Net, 272,474 parameters\n"
            "  data       9,984 samples, 2,000 to validate\n"
            "  steps      468 steps; 156 an epoch\n"
            "  batch      64 samples a step, 32 on each rank\n"
            "  strategy   ddp, 2 ranks on 1 node, back end shm, on cpu\n"
            "  precision  32-true\n"
            "  memory     52.0 MiB of tensors a rank in training steps, predicted\n"
            "  folder     runs/quickstart");
}

TEST(RunPlan, SaysWhatIsNotUsual) {
  RunPlan plan = kPlan;
  plan.trainable = 10;
  plan.steps = 0;
  plan.steps_made = 7;
  plan.micro_batches = 4;
  plan.predicted_bytes = {3 << 20, 5 << 20, 2 << 20};
  EXPECT_THAT(describe(plan), HasSubstr("2.0 MiB to 5.0 MiB of tensors a rank in training steps"));
  plan.predicted_bytes = {};
  const auto text = describe(plan);
  EXPECT_THAT(text, HasSubstr("272,474 parameters, 10 of them trainable"));
  EXPECT_THAT(text, HasSubstr("until the time is over, from step 7 on; 156 an epoch"));
  EXPECT_THAT(text, HasSubstr("256 samples a step, 128 on each rank, in 4 micro-batches"));
  EXPECT_THAT(text, Not(HasSubstr("memory")));
  plan.ranks = plan.replicas = 1;
  EXPECT_THAT(describe(plan), HasSubstr("strategy   1 rank on cpu"));
}

}  // namespace
}  // namespace troika::train
