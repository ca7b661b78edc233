// The memory of the ranks of a tensor axis.
#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "tests/train/pipelined_runs.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/tensor_memory.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/cut_layers.h"
#include "troika/train/memory/pass_memory.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/profile/block_memory.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

constexpr int64_t kLayerSamples = 4, kLayerTokens = 64, kLayerWidth = 256, kLayerHeads = 8;

nn::ModelOptions layers_of_gpt() {
  return {.name = "gpt",
          .dropout = 0.1,
          .vocab_size = 13,
          .context = kLayerTokens,
          .layers = 3,
          .heads = kLayerHeads,
          .width = kLayerWidth,
          .attn_implementation = "eager"};
}

// The bytes that a layer keeps for its backward pass, divided by samples, tokens and width.
double kept_by_a_layer(int ranks, bool sequence) {
  const SizedSamples samples(layers_of_gpt());
  const auto smaller = samples.load(std::vector<int64_t>(kLayerSamples / 2, 0), {});
  const auto larger = samples.load(std::vector<int64_t>(kLayerSamples, 0), {});
  const auto precision = nn::parse_precision("bf16-true");
  const compat::FakeTensorGuard no_memory;
  Task task(nn::make_model(layers_of_gpt()));
  Placement{.precision = precision}.place(task.module());
  auto& model = dynamic_cast<nn::Model&>(task.module());
  std::optional<CutLayers> cut;
  if (ranks > 1) cut.emplace(model, task.split_table(), ranks, sequence);
  const PassMemory pass(task, precision, smaller, larger);
  const auto blocks = memory_of_blocks(pass.parts(kLayerSamples), model.blocks().size());
  return blocks[2].saved / (kLayerSamples * kLayerTokens * kLayerWidth);
}

// Korthikanti et al. 2022, arXiv 2205.05198, table 2, for activations of 16 bits.
TEST(TensorMemory, ActivationsOfALayerAreThoseOfTheTable) {
  compat::count_tensor_memory();
  const double scores = 5.0 * kLayerHeads * kLayerTokens / kLayerWidth;
  for (const double t : {1, 2, 4}) {
    const auto ranks = static_cast<int>(t);
    const double axis = 10 + 24 / t + scores / t;
    EXPECT_NEAR(kept_by_a_layer(ranks, false), axis, 0.1 * axis) << t;
    if (ranks == 1) continue;
    const double tokens = (34 + scores) / t;
    EXPECT_NEAR(kept_by_a_layer(ranks, true), tokens, 0.1 * tokens) << t;
  }
}

// The same predictor has the whole model again after a choice that cuts it.
TEST(TensorMemory, SaysWhyAnAxisIsNotPredicted) {
  compat::count_tensor_memory();
  TrainOptions options;
  options.model = layers_of_gpt();
  options.trainer.strategy = "tp";
  options.data.batch_size = 4;
  options.mesh.tensor = 2;
  const SizedSamples samples(options.model);
  MemoryPredictor predictor(options, samples);
  const auto why_not = [&](int ranks) { return predictor.why_not(predictor.configured(ranks)); };
  EXPECT_EQ(why_not(4), "");
  EXPECT_THAT(why_not(3), HasSubstr("mesh.tensor and mesh.data do not fit the ranks of this run"));
  auto other = predictor.configured(4);
  other.strategy = "ddp";
  EXPECT_EQ(predictor.why_not(other), "strategy ddp with options that cut the model");
  const auto of_two = predictor.predict(predictor.configured(2));
  // LibTorch allocates a little at the first use of an operator only.
  EXPECT_NEAR(predictor.predict(predictor.configured(2)).step.sum(), of_two.step.sum(), 4096);
  options.mesh.tensor = 3;
  EXPECT_THAT(why_not(3), HasSubstr("8 heads, 3 ranks"));
  options.mesh.tensor = 2;
  options.optimizer.name = "adamw_8bit";
  EXPECT_THAT(why_not(4), HasSubstr("does not combine with states of 8 bits"));
}

}  // namespace
}  // namespace troika::train
