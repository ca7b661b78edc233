// Runs with convolution weights in the format channels_last, against runs with contiguous weights.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/sequential.h"
#include "troika/nn/state.h"
#include "troika/train/task/replicated_task.h"
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
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : net->parameters()) {
    const auto waves = torch::sin(torch::arange(parameter.numel(), torch::kDouble) + ++phase);
    parameter.copy_(waves.view_as(parameter) / 4);
  }
  return nn::from_sequential(net);
}

std::shared_ptr<Task> make_images_task() {
  return std::make_shared<Task>(make_images_model());
}

class MemoryFormatOfARun : public testing::Test {
 protected:
  MemoryFormatOfARun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 4;
    options_.optimizer = {.name = "adamw", .lr = 1e-3};
    options_.schedule.name = "constant";  // others depend on the length of the run
    options_.comm.bucket_megabytes = 1e-2;
    options_.comm.first_bucket_megabytes = 1e-3;
  }

  static std::shared_ptr<Task> make_task_for(const TrainOptions& options) {
    if (options.trainer.strategy != "dp") return make_images_task();
    return std::make_shared<ReplicatedTask>(
        std::vector<std::shared_ptr<Task>>{make_images_task(), make_images_task()});
  }

  // Rank 0's weights.
  static state::StateDict fit(const TrainOptions& options, int ranks) {
    state::StateDict result;
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_task_for(options);
      const Images images;
      Trainer(options, group).fit(*task, images, images);
      if (group.rank() == 0) result = nn::named_state(task->module());
    });
    return result;
  }

  state::StateDict fit(const std::string& format, int ranks) {
    options_.trainer.memory_format = format;
    return fit(options_, ranks);
  }

  // Up to rounding.
  static void expect_close(const state::StateDict& a, const state::StateDict& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].second.allclose(b[i].second, 1e-9, 1e-9)) << a[i].first;
    }
  }

  static void expect_same(const state::StateDict& a, const state::StateDict& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
    }
  }

  static bool is_channels_last(const state::StateDict& state) {
    return state[0].second.is_contiguous(at::MemoryFormat::ChannelsLast);
  }

  // The run from its last checkpoint to its end.
  state::StateDict resume(const std::string& format, int ranks = 1) {
    auto options = options_;
    options.trainer.memory_format = format;
    options.trainer.ckpt_path = "last";
    return fit(options, ranks);
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(MemoryFormatOfARun, EveryStrategyGetsTheSameWeights) {
  for (const char* strategy : {"ddp", "dp", "local_sgd", "diloco", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    options_.trainer.strategy = strategy;
    options_.trainer.devices = 2;
    options_.diloco.period = 2;
    options_.trainer.accumulate_grad_batches = strategy == std::string("ddp") ? 2 : 1;
    const auto whole = fit("contiguous", 2);
    const auto last = fit("channels_last", 2);
    expect_close(last, whole);
    EXPECT_FALSE(is_channels_last(whole));
    EXPECT_EQ(is_channels_last(last), !std::string(strategy).starts_with("zero"));
  }
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
  for (const std::string strategy : {"ddp", "zero2"}) {
    options_.trainer.strategy = strategy;
    for (const std::string from : {"contiguous", "channels_last"}) {
      options_.run.name = strategy + from;
      options_.trainer.max_epochs = 2;
      const auto whole = fit(from, 2);
      options_.run.name += "-resumed";
      options_.trainer.max_epochs = 1;
      const auto half = fit(from, 2);
      options_.trainer.max_epochs = 2;
      // Without checkpoints of their own, both resume from that one.
      options_.checkpoint.enabled = false;
      for (const std::string to : {"contiguous", "channels_last"}) {
        SCOPED_TRACE(options_.run.name + " from " + from + " to " + to);
        const auto resumed = resume(to, 2);
        if (from == to) expect_same(resumed, whole);
        expect_close(resumed, whole);
      }
      options_.checkpoint.enabled = true;
      EXPECT_FALSE(half[0].second.allclose(whole[0].second, 1e-6, 1e-6));
    }
  }
}

TEST_F(MemoryFormatOfARun, ARunGoesOnInTheMiddleOfAStep) {
  options_.trainer.memory_format = "channels_last";
  options_.trainer.accumulate_grad_batches = 2;
  const auto whole = fit(options_, 1);
  options_.run.name = "stopped";
  const auto task = make_images_task();
  const Images images;
  Trainer trainer(options_, comm::local::alone());
  trainer.ask_to_stop([micro_batches = 0]() mutable {
    return ++micro_batches == 3 ? cluster::StopRequest::save_and_stop : cluster::StopRequest::none;
  });
  EXPECT_EQ(trainer.fit(*task, images, images).status, "stopped");
  expect_same(resume("channels_last"), whole);
}

TEST_F(MemoryFormatOfARun, StatesThatFollowTheMemoryStayInIt) {
  const auto expect_refused = [&] {
    fit("channels_last", 1);
    EXPECT_NO_THROW(resume("channels_last"));
    EXPECT_ERROR(resume("contiguous"), ErrorKind::usage,
                 "[train] states of adamw_8bit and of ddp.hook follow the order of weights in "
                 "memory; got a checkpoint of channels_last for contiguous, expected the same "
                 "order (set trainer.memory_format to channels_last)");
  };
  options_.trainer.max_epochs = 1;
  options_.optimizer.name = "adamw_8bit";
  expect_refused();
  options_.run.name = "hook";
  options_.optimizer.name = "adamw";
  options_.ddp.codec.name = "topk";
  expect_refused();
}

}  // namespace
}  // namespace troika::train
