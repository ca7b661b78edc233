// Runs with convolution weights in the format channels_last, against runs with contiguous weights.
#include <gmock/gmock.h>

#include "tests/train/layout_run.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/sequential.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

constexpr int64_t kPictures = 16;

class Images : public data::Dataset {
 public:
  int64_t size() const override { return kPictures; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto phases = numbers.to(at::kDouble).view({-1, 1, 1, 1}) * 0.7;
    const auto pixels = at::arange(3 * 6 * 6, at::kDouble).view({1, 3, 6, 6});
    return {at::sin(pixels * 1.3 + phases), numbers % 3};
  }
  int64_t num_classes() const override { return 3; }
  std::vector<int64_t> input_shape() const override { return {3, 6, 6}; }
};

std::shared_ptr<nn::Model> make_images_model() {
  using torch::nn::Conv2d, torch::nn::Conv2dOptions;
  torch::nn::Sequential net(Conv2d(3, 32, 3), nn::BatchNorm(32), torch::nn::ReLU(),
                            Conv2d(32, 32, 3), torch::nn::Tanh(), Conv2d(32, 8, 1),
                            torch::nn::Flatten(), torch::nn::Linear(32, 3));
  fill_with_waves(*net, 0.25);
  return nn::from_sequential(net);
}

std::shared_ptr<Task> make_images_task() {
  return std::make_shared<Task>(make_images_model());
}

bool is_channels_last(const state::StateDict& weights) {
  return weights[0].second.is_contiguous(at::MemoryFormat::ChannelsLast);
}

class MemoryFormatOfARun : public LayoutRun {
 protected:
  MemoryFormatOfARun()
      : LayoutRun({"memory_format", &TrainOptions::Trainer::memory_format, "contiguous",
                   "channels_last", is_channels_last},
                  make_images_task, std::make_shared<Images>()) {}
};

TEST_F(MemoryFormatOfARun, EveryStrategyGetsTheSameWeights) {
  expect_that_every_strategy_gets_the_same_weights();
}

TEST_F(MemoryFormatOfARun, ImagesComeInIt) {
  struct Looking : Task {
    using Task::Task;
    at::Tensor training_step(const data::Batch& batch) override {
      last = batch.inputs.is_contiguous(at::MemoryFormat::ChannelsLast);
      return Task::training_step(batch);
    }
    bool last = false;
  };
  for (const char* precision : {"32", "bf16-mixed", "bf16-true"}) {
    options_.trainer.precision = precision;
    Looking task(make_images_model());
    const Images images;
    Trainer(options_, comm::local::alone()).fit(task, images, images);
    EXPECT_EQ(task.last, precision != std::string("32")) << precision;
    EXPECT_EQ(is_channels_last(nn::named_state(task.module())), task.last) << precision;
  }
}

TEST_F(MemoryFormatOfARun, CheckpointsGoIntoEither) {
  expect_that_checkpoints_can_be_loaded_into_either();
}

TEST_F(MemoryFormatOfARun, ResumesInTheMiddleOfAStep) {
  options_.trainer.memory_format = "channels_last";
  options_.trainer.accumulate_grad_batches = 2;
  const auto whole = fit("channels_last", 1);
  options_.run.name = "stopped";
  const auto task = make_images_task();
  const Images images;
  Trainer trainer(options_, comm::local::alone());
  trainer.ask_to_stop([micro_batches = 0]() mutable {
    return ++micro_batches == 3 ? cluster::StopRequest::save_and_stop : cluster::StopRequest::none;
  });
  EXPECT_EQ(trainer.fit(*task, images, images).status, "stopped");
  expect_equal(resume("channels_last"), whole, 0);
}

TEST_F(MemoryFormatOfARun, StatesThatFollowTheMemoryStayInIt) {
  expect_that_states_stay_in_their_order();
}

}  // namespace
}  // namespace troika::train
