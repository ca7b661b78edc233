#include "troika/train/memory/pipeline_memory.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/nn/model.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/train/memory/module_exchange.h"

namespace troika::train {
namespace {

constexpr int64_t kWidth = 128;  // a layer's weights are more than ZeRO 3 keeps whole

std::shared_ptr<nn::Model> four_layers() {
  auto model = std::make_shared<nn::Model>();
  for (int i = 0; i < 4; ++i) {
    const auto name = "layer." + std::to_string(i);
    auto layer = model->place(name, torch::nn::Linear(kWidth, kWidth));
    model->add_block(
        {name, {name}, {}, [=](const at::Tensor& x) mutable { return layer->forward(x); }});
  }
  return model;
}

// Passes that need no memory, so that moments show what the exchange holds.
StageMemory no_bytes(const parallel::StageOfModel& stage) {
  return {.taken = std::vector<double>(stage.takes.size(), 0),
          .gradients = std::vector<double>(stage.takes.size(), 0),
          .given_gradients = std::vector<double>(stage.gives.size(), 0),
          .backward = {PassPart{}},
          .backward_weight = {}};
}

TEST(PipelineMemory, ShardedParametersAreWholeFromGatherToReduce) {
  const auto model = four_layers();
  layout::Plan plan{.mesh = layout::Mesh::parse("pipeline=2 data=2"),
                    .schedule = "gpipe",
                    .micro_batches = 4,
                    .exchange = {.method = layout::ExchangeMethod::zero, .zero_stage = 3}};
  const PipelineShapes shapes(*model, plan);
  std::vector<StageMemory> stages;
  for (int s = 0; s < 2; ++s) stages.push_back(no_bytes(shapes.stages()[s]));
  const auto part = parallel::module_of(*model, parallel::tensors_of_blocks(*model, 0, 2));
  RankExchanges own{.parts = {{0, exchange_of(*part,
                                              {.stage = 3,
                                               .ranks = 2,
                                               .bucket_bytes = 1 << 20,
                                               .first_bucket_bytes = 1 << 20,
                                               .gathers_at_once = true},
                                              {3, 2, 1, 0})}},
                    .parameters = {}};
  const double whole = 2 * (kWidth * kWidth + kWidth) * sizeof(float);
  PipelineMemory memory(shapes, 0, stages, own, /*keeps_sent=*/true);
  std::vector<double> buckets;
  const auto observe = [&](const PipelineMemory::Moment& moment) {
    buckets.push_back(moment.buckets);
  };
  for (const bool after_validation : {true, false}) {
    memory.step(after_validation, observe);
    EXPECT_EQ(own.parts.front().memory.held().buckets, 0) << "the step has reduced them";
  }
  EXPECT_THAT(buckets, testing::SizeIs(2 * 2 * plan.micro_batches));
  EXPECT_THAT(buckets, testing::Each(whole));
}

}  // namespace
}  // namespace troika::train
