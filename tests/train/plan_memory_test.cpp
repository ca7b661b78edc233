// The planner's memory of a plan, from the bytes of a profile, beside that of `troika memory`.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/train/pipelined_runs.h"
#include "troika/compat/tensor_memory.h"
#include "troika/plan/search/step_layout.h"
#include "troika/train/memory/batches.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/context_cuts.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/profile/tensor_cuts.h"

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
  static constexpr int64_t kSamples = 8;  // of a micro-batch

  PlanMemory() {
    compat::count_tensor_memory();
    options_.model = large(GetParam());
    options_.optimizer.name = "adamw";
    options_.data.workers = 1;
    options_.data.prefetch = 2;
    options_.data.batch_size = kSamples;
  }

  plan::StepModel planner(const comm::Group& group, int ranks, double micro_batches,
                          layout::StageWeights weights = layout::StageWeights::synchronous) const {
    const SizedSamples samples(options_.model);
    const auto precision = nn::parse_precision("32");
    layout::Profile profile{
        .micro_batch = kSamples,
        .splits_backward = true,
        .optimizer_factor = 2,
        .in_step = {.batches = batches_of(options_, samples.load(std::vector<int64_t>{0}, {}), {},
                                          kSamples)},
        .blocks = counted_blocks(options_, samples, precision, kSamples, group)};
    add_tensor_cuts(profile.blocks, options_, samples, precision, kSamples, group);
    add_context_cuts(profile.blocks, options_, "auto", samples, precision, kSamples, group);
    return plan::StepModel({.profiles = {profile},
                            .cluster = layout::Cluster::uniform(1, ranks),
                            .global_batch = kSamples * micro_batches,
                            .cuts_layers = true,
                            .weights = weights});
  }
  // The memory of a rank of each stage in a training step, as `troika memory` predicts it.
  std::vector<MemoryParts> predicted(const plan::StepModel& model,
                                     const plan::StepPlan& plan) const {
    const SizedSamples samples(options_.model);
    auto options = options_;
    const auto layout = plan::layout_of(model, plan);
    options.trainer.plan = layout.text();
    options.data.batch_size = 0;
    options.data.global_batch_size = kSamples * layout.mesh.sample_shares();
    options = with_plan(options);
    MemoryPredictor predictor(options, samples);
    std::vector<MemoryParts> parts;
    for (const auto& rank : predictor.predict_ranks(predictor.configured(plan.settings.devices))) {
      parts.push_back(rank.step);
    }
    return parts;
  }
  void compare(const plan::StepModel& model, const StepSettings& settings,
               const std::vector<plan::StepStage>& stages) const {
    const auto plan = model.estimate(settings, stages);
    const auto expected = predicted(model, plan);
    ASSERT_EQ(expected.size(), stages.size());
    for (size_t i = 0; i < stages.size(); ++i) {
      const double ratio = plan.memory_bytes[i] / expected[i].sum();
      const auto what = fmt::format(
          "{}, {} devices, tensor {}, sequence {}, context {}, zero{}, recompute {}, "
          "overlap {}, stage {}: {} of {}",
          name(settings.family), settings.devices, settings.axes.tensor, settings.axes.sequence,
          settings.axes.context, settings.zero_stage, settings.recompute, settings.tensor_overlap,
          i, plan.memory_bytes[i], expected[i].sum());
      EXPECT_GT(ratio, 0.97) << what;
      EXPECT_LT(ratio, 1.05) << what;
    }
  }
  // Compares pipelines of two stages, and of as many stages as there are replicas of each.
  void compare_pipelines(const plan::StepModel& model, StepSettings settings) const {
    const size_t end = model.blocks();
    for (const bool recompute : {false, true}) {
      settings.recompute = recompute;
      settings.devices = 2 * settings.axes.ranks();
      compare(model, settings, {{end / 2, 1}, {end, 1}});
      if (settings.axes.ranks() > 1) continue;
      settings.devices = 4;
      compare(model, settings, {{end / 2, 2}, {end, 2}});
      compare(model, settings, {{end / 4, 1}, {end / 2, 1}, {3 * end / 4, 1}, {end, 1}});
    }
  }

  TrainOptions options_;
};

// A plan that would be chosen has the memory that `troika memory` predicts.
TEST_P(PlanMemory, IsNearThatOfTheRun) {
  comm::local::run(1, [&](const comm::Group& group) {
    const auto model = planner(group, 2, 2);
    for (const bool recompute : {false, true}) {
      for (int zero = 0; zero <= 3; ++zero) {
        compare(model, {.recompute = recompute, .zero_stage = zero, .devices = 2},
                {{model.blocks(), 2}});
      }
    }
    const auto longer = planner(group, 4, 8);
    for (const auto family : {StepFamily::pipeline, StepFamily::zero_bubble, StepFamily::gpipe}) {
      compare_pipelines(longer, {.family = family});
    }
    for (const auto weights :
         {layout::StageWeights::stashed, layout::StageWeights::double_buffered}) {
      compare_pipelines(planner(group, 4, 8, weights), {.family = StepFamily::no_flushes});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, PlanMemory, testing::Values("mlp", "resnet20", "gpt", "llama"));

// Plans whose blocks several ranks compute together.
class SharedPlanMemory : public PlanMemory {
 protected:
  void compare_all(const plan::StepModel& model, const plan::BlockAxes& axes,
                   bool overlaps = false) const {
    StepSettings settings{.devices = 2 * axes.ranks(), .axes = axes, .tensor_overlap = overlaps};
    for (const bool recompute : {false, true}) {
      settings.recompute = recompute;
      for (const int zero : {0, 1}) {
        settings.zero_stage = zero;
        compare(model, settings, {{model.blocks(), 2}});
      }
    }
    settings.zero_stage = 0;
    for (const auto family : {StepFamily::pipeline, StepFamily::zero_bubble, StepFamily::gpipe}) {
      settings.family = family;
      compare_pipelines(model, settings);
    }
  }
};

TEST_P(SharedPlanMemory, OfATensorAxisIsNearThatOfTheRun) {
  comm::local::run(1, [&](const comm::Group& group) {
    const auto model = planner(group, 4, 8);
    for (const bool sequence : {false, true}) {
      for (const bool overlaps : {false, true}) {
        compare_all(model, {.tensor = 2, .sequence = sequence}, overlaps);
      }
    }
  });
}

// Inner stages, and a first one that may only embed.
TEST_P(SharedPlanMemory, OfFourStagesIsNearThatOfTheRun) {
  comm::local::run(1, [&](const comm::Group& group) {
    const auto model = planner(group, 8, 8);
    const size_t end = model.blocks();
    for (const bool sequence : {false, true}) {
      for (const bool overlaps : {false, true}) {
        for (const auto family :
             {StepFamily::pipeline, StepFamily::zero_bubble, StepFamily::gpipe}) {
          for (const bool recompute : {false, true}) {
            compare(model,
                    {.recompute = recompute,
                     .family = family,
                     .devices = 8,
                     .axes = {.tensor = 2, .sequence = sequence},
                     .tensor_overlap = overlaps},
                    {{end / 4, 1}, {end / 2, 1}, {3 * end / 4, 1}, {end, 1}});
          }
        }
      }
    }
  });
}

TEST_P(SharedPlanMemory, OfAContextAxisIsNearThatOfTheRun) {
  comm::local::run(1, [&](const comm::Group& group) {
    compare_all(planner(group, 4, 8), {.context = 2});
    const auto more = planner(group, 8, 8);
    const size_t end = more.blocks();
    compare(more, {.family = StepFamily::zero_bubble, .devices = 8, .axes = {.context = 2}},
            {{end / 4, 1}, {end / 2, 1}, {3 * end / 4, 1}, {end, 1}});
    compare_all(more, {.context = 4});
    compare_all(more, {.tensor = 2, .context = 2});
  });
}

INSTANTIATE_TEST_SUITE_P(Models, SharedPlanMemory, testing::Values("gpt", "llama"));

}  // namespace
}  // namespace troika::train
