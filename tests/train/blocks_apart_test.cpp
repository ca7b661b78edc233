// Models that are measured one block at a time.
#include "troika/train/engine/blocks_apart.h"

#include <gmock/gmock.h>

#include "tests/train/pipelined_runs.h"
#include "tests/train/tuned_run.h"
#include "troika/base/memory.h"
#include "troika/compat/deferred_init.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/tensor_memory.h"
#include "troika/data/make_dataset.h"
#include "troika/train/profile/automatic_plan.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/profile/measure_profile.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Gt;
using testing::IsEmpty;
using testing::SizeIs;

class ApartBlocks : public TunedRun {
 protected:
  ApartBlocks() {
    options_.trainer.benchmark = false;
    options_.trainer.enable_model_summary = false;
    options_.data.workers = 0;
    options_.optimizer.name = "adamw";
  }
};

double bytes_of(const nn::Model& model) {
  double bytes = 0;
  for (const auto& tensor : model.parameters()) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

TEST_F(ApartBlocks, HoldOneBlockAtATime) {
  compat::count_tensor_memory();
  auto sizes = sizes_of("mlp");
  sizes.hidden_width = 512;
  sizes.hidden_layers = 8;  // 1 MiB each
  const auto batch = SizedSamples(sizes).load(std::vector<int64_t>{0, 1, 2, 3}, {});
  compat::DeferredInit values;
  std::optional<Task> task;
  values.record([&] { task.emplace(nn::make_model(sizes)); });
  const Placement placement;
  placement.place(task->module(), values);
  const double whole = bytes_of(task->blocks());
  const int64_t before = memory::live();
  memory::restart_peak();
  BlocksApart times(*task, values, placement, batch);
  for (size_t block = 0; block < times.size(); ++block) {
    times.enter();
    for (const auto round : {Round::whole, Round::extra, Round::whole, Round::split}) {
      EXPECT_GT(times.run(round), 0);
    }
    times.leave();
  }
  EXPECT_LT(static_cast<double>(memory::peak() - before), 0.6 * whole) << "weights and gradients";
  EXPECT_LT(static_cast<double>(memory::live() - before), 0.05 * whole);
  for (const auto& block : times.seconds()) {
    EXPECT_THAT(block.forward, AllOf(SizeIs(2), Each(Gt(0))));
    EXPECT_THAT(block.backward, AllOf(SizeIs(2), Each(Gt(0))));
    EXPECT_THAT(block.backward_input, SizeIs(1));
    EXPECT_THAT(block.backward_weight, SizeIs(1));
  }
}

// The same products as in a step of the whole model.
TEST_F(ApartBlocks, DoTheWorkOfAWholeStep) {
  for (const std::string model : {"mlp", "gpt", "resnet20", "llama"}) {
    const auto sizes = sizes_of(model);
    const auto batch = SizedSamples(sizes).load(std::vector<int64_t>{0, 1, 2, 3}, {});
    double expected = 0;
    {
      Task whole(nn::make_model(sizes));
      const compat::FlopCounter counter;
      whole.training_step(batch).backward();
      expected = static_cast<double>(counter.flops());
    }
    compat::DeferredInit values;
    std::optional<Task> task;
    values.record([&] { task.emplace(nn::make_model(sizes)); });
    const Placement placement;
    placement.place(task->module(), values);
    BlocksApart times(*task, values, placement, batch);
    double sum = 0;
    for (size_t block = 0; block < times.size(); ++block) {
      times.enter();
      const auto products = times.count_products();
      for (const auto& product : products.forward) sum += product.flops;
      for (const auto& product : products.backward) sum += product.flops;
      times.leave();
    }
    EXPECT_DOUBLE_EQ(sum, expected) << model;
  }
}

// A model with tensors between blocks that are not neighbours.
TEST_F(ApartBlocks, MakeAProfileLikeThatOfAllBlocks) {
  options_.data.name = "shape_masks";
  options_.data.train_samples = 8;
  const auto masks = data::make_dataset(options_.data, data::Split::train);
  options_.model = {.name = "unet",
                    .num_classes = masks->num_classes(),
                    .in_channels = masks->input_shape().at(0),
                    .image_size = masks->input_shape().at(1),
                    .depth = 2,
                    .convolutions = 1,
                    .base_width = 4};
  comm::local::run(2, [&](const comm::Group& group) {
    const auto whole = measure_profile(options_, *masks, group, {.micro_batch = 2, .seconds = 0});
    const auto apart = measure_profile(options_, *masks, group,
                                       {.micro_batch = 2, .seconds = 0, .block_by_block = true});
    EXPECT_EQ(apart.edges, whole.edges);
    EXPECT_GT(apart.optimizer_bytes_per_second, 0);
    EXPECT_NEAR(apart.optimizer_factor, whole.optimizer_factor, 0.1);
    ASSERT_EQ(apart.blocks.size(), whole.blocks.size());
    for (size_t i = 0; i < whole.blocks.size(); ++i) {
      const auto &one = apart.blocks[i], &other = whole.blocks[i];
      EXPECT_EQ(one.name, other.name);
      EXPECT_EQ(one.parameter_bytes, other.parameter_bytes);
      EXPECT_NEAR(one.saved_bytes, other.saved_bytes, 0.01 * other.saved_bytes);
      EXPECT_EQ(one.output_bytes, other.output_bytes);
      EXPECT_GT(one.forward, 0);
      EXPECT_GT(one.backward(), 0);
    }
  });
}

TEST_F(ApartBlocks, FindAPlanForAModelThatDoesNotFit) {
  options_.model = sizes_of("mlp");
  options_.model.image_size = 8;
  options_.model.hidden_width = 512;
  options_.model.hidden_layers = 3;
  options_.data.batch_size = 4;
  options_.trainer.max_steps = 2;
  comm::local::run(2, [&](const comm::Group& group) {
    const SizedSamples samples(options_.model);
    const auto find = [&](double memory_bytes) {
      return find_plan(options_, samples, group,
                       {.seconds = 0,
                        .precisions = {"32"},
                        .memory_bytes = memory_bytes,
                        .cuts_layers = false,
                        .block_by_block = true});
    };
    double whole = INFINITY;
    const auto roomy = find(1e12);
    for (const auto& plan : roomy.found.alternatives) {
      if (plan.stages.size() == 1) whole = std::min(whole, plan.memory_bytes.front());
    }
    const auto tight = find(0.98 * whole);
    EXPECT_THAT(tight.forced, IsEmpty()) << "offload is not measured";
    ASSERT_TRUE(tight.found.best);
    EXPECT_EQ(tight.chosen().stages.size(), 2);
    const auto planned = with_found_plan(options_, tight, group);
    EXPECT_EQ(layout::Plan::parse(planned.trainer.plan, "plan").mesh.text(), "pipeline=2 data=1");
  });
}

}  // namespace
}  // namespace troika::train
