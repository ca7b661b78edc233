// The planner's memory of a plan, from the bytes of a profile, beside that of `troika memory`.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/train/pipelined_runs.h"
#include "troika/compat/tensor_memory.h"
#include "troika/plan/search/step_layout.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/counted_blocks.h"

namespace troika::train {
namespace {

using plan::StepFamily;
using plan::StepSettings;

// Models whose activations and weights are not small beside batches and buffers.
nn::ModelOptions large(const std::string& name) {
  auto sizes = sizes_of(name);
  if (name == "mlp") {
    sizes.image_size = 16;
    sizes.hidden_width = 256;
  } else if (name == "gpt") {
    sizes.width = 64;
    sizes.context = 32;
  } else if (name == "llama") {
    sizes.width = 64;
    sizes.ffn_width = 128;
    sizes.layers = 4;
    sizes.context = 32;
  }
  return sizes;
}

class PlanMemory : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int kRanks = 2;
  static constexpr int64_t kSamples = 8;  // of a micro-batch

  PlanMemory() {
    compat::count_tensor_memory();
    options_.model = large(GetParam());
    options_.optimizer.name = "adamw";
    options_.data.workers = 0;
    options_.data.batch_size = kSamples;
  }

  plan::StepModel planner(const comm::Group& group, double micro_batches) const {
    const SizedSamples samples(options_.model);
    layout::Profile profile{
        .micro_batch = kSamples,
        .splits_backward = true,
        .optimizer_factor = 2,
        .blocks = counted_blocks(options_, samples, nn::parse_precision("32"), kSamples, group)};
    return plan::StepModel({.profiles = {profile},
                            .cluster = layout::Cluster::uniform(1, kRanks),
                            .global_batch = kSamples * micro_batches});
  }
  // The bytes of a rank of each stage in a training step, as `troika memory` predicts them.
  std::vector<double> predicted(const plan::StepModel& model, const plan::StepPlan& plan) const {
    const SizedSamples samples(options_.model);
    auto options = options_;
    const auto layout = plan::layout_of(model, plan);
    options.trainer.plan = layout.text();
    options.data.batch_size = 0;
    options.data.global_batch_size = kSamples * layout.mesh.sample_shares();
    options = with_plan(options);
    MemoryPredictor predictor(options, samples);
    std::vector<double> bytes;
    for (const auto& rank : predictor.predict_ranks(predictor.configured(kRanks))) {
      bytes.push_back(rank.step.sum());
    }
    return bytes;
  }
  void compare(const plan::StepModel& model, const StepSettings& settings,
               const std::vector<plan::StepStage>& stages, double least, double most) const {
    const auto plan = model.estimate(settings, stages);
    const auto expected = predicted(model, plan);
    ASSERT_EQ(expected.size(), stages.size());
    for (size_t i = 0; i < stages.size(); ++i) {
      const double ratio = plan.memory_bytes[i] / expected[i];
      EXPECT_GT(ratio, least) << name(settings.family) << ", zero" << settings.zero_stage
                              << ", recompute " << settings.recompute << ", stage " << i;
      EXPECT_LT(ratio, most) << name(settings.family) << ", zero" << settings.zero_stage
                             << ", recompute " << settings.recompute << ", stage " << i;
    }
  }

  TrainOptions options_;
};

// A profile does not know the batches, and the buffers of messages, which are large beside stages
// as small as these. A plan that would be chosen has the memory that `troika memory` predicts.
TEST_P(PlanMemory, IsNearThatOfTheRun) {
  comm::local::run(1, [&](const comm::Group& group) {
    const auto model = planner(group, 2);
    for (const bool recompute : {false, true}) {
      for (int zero = 0; zero <= 3; ++zero) {
        compare(model, {.recompute = recompute, .zero_stage = zero, .devices = kRanks},
                {{model.blocks(), kRanks}}, 0.97, 1.05);
      }
    }
    const auto longer = planner(group, 6);
    for (const auto family : {StepFamily::pipeline, StepFamily::zero_bubble, StepFamily::gpipe}) {
      for (const bool recompute : {false, true}) {
        compare(longer, {.recompute = recompute, .family = family, .devices = kRanks},
                {{longer.blocks() / 2, 1}, {longer.blocks(), 1}}, 0.84, 1.04);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, PlanMemory, testing::Values("mlp", "resnet20", "gpt", "llama"));

}  // namespace
}  // namespace troika::train
