// Weights: runs that start from given weights, checkpoints of weights only, and models that are
// made from a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/errors.h"
#include "tests/train/waves.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/nn/zoo.h"
#include "troika/train/options/checkpoint_options.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Weights : public testing::Test {
 protected:
  Weights() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.enable_progress_bar = false;
    options_.trainer.max_epochs = 1;
    options_.data.global_batch_size = 6;
    options_.optimizer.name = "adamw";
    options_.optimizer.lr = 0.05;
  }

  std::filesystem::path fit(const TrainOptions& options, int ranks, bool stops = false) {
    comm::local::run(ranks, [&](comm::Group group) {
      const auto task = make_waves_task(kWidth, 0);
      const Waves waves;
      Trainer trainer(options, group);
      if (stops) trainer.ask_to_stop([] { return cluster::StopRequest::save_and_stop; });
      trainer.fit(*task, waves, waves);
    });
    return checkpoint::find_checkpoint(checkpoints(options), "last");
  }

  static std::filesystem::path checkpoints(const TrainOptions& options) {
    return std::filesystem::path(options.run.folder) / options.run.name / "checkpoints";
  }

  // Expects that a run starts from these weights. The run does not change them.
  void expect_starts_from(const std::filesystem::path& weights,
                          const checkpoint::NamedTensors& expected) {
    auto options = options_;
    options.run.name = "next";
    options.weights.path = weights.string();
    options.optimizer = {.name = "sgd", .lr = 1e-30};
    options.trainer.max_steps = 1;
    options.checkpoint.weights_only = false;
    const checkpoint::CheckpointReader found(fit(options, 2), 0);
    for (const auto& [name, tensor] : expected) {
      if (name.find("running") != std::string::npos || name.ends_with("tracked")) continue;
      EXPECT_TRUE(found.read(checkpoint::kModelPrefix + name).equal(tensor)) << name;
    }
    EXPECT_EQ(found.read("loops.step").item<int64_t>(), 1) << "a run of its own";
  }

  static constexpr int64_t kWidth =
      2603;  // zero3 shards blocks of this width, and releases their parameters

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(Weights, ANewRunStartsFromThoseOfAnyCheckpoint) {
  options_.trainer.strategy = "zero3";
  const auto saved = fit(options_, 3);
  options_.trainer.strategy = "ddp";
  const auto expected = checkpoint::load_weights(saved);
  ASSERT_EQ(expected.size(), 9u);
  expect_starts_from(saved, expected);
  expect_starts_from(checkpoints(options_) / "last.safetensors", expected);
  const auto exported = folder_ / "exported.safetensors";
  checkpoint::save_safetensors(exported, expected);
  expect_starts_from(exported, expected);
}

TEST_F(Weights, ARunThatGoesOnDoesNotLookAtThem) {
  options_.trainer.ckpt_path = "last";
  fit(options_, 1);
  options_.weights.path = "nowhere";
  EXPECT_NO_THROW(fit(options_, 1));
  options_.run.name = "another";
  EXPECT_THROW(fit(options_, 1), Error);
}

TEST_F(Weights, WhatDoesNotFitIsNamedOrLeft) {
  torch::nn::Sequential given(torch::nn::Linear(3, 2), torch::nn::Linear(2, 4));
  const auto file = folder_ / "given.safetensors";
  checkpoint::save_safetensors(file, checkpoint::model_state(*given));
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, 5));
  EXPECT_ERROR(checkpoint::take_weights(*net, file, true), ErrorKind::usage,
               "[checkpoint] the tensors of " + file.string() +
                   " do not fit the model; got `1.weight` of shape [4, 2] instead of [5, 2], "
                   "`1.bias` of shape [4] instead of [5]");
  const auto head = net->parameters()[2].clone();
  checkpoint::take_weights(*net, file, false);
  EXPECT_TRUE(net->parameters()[0].equal(given->parameters()[0]));
  EXPECT_TRUE(net->parameters()[1].equal(given->parameters()[1]));
  EXPECT_TRUE(net->parameters()[2].equal(head));
  torch::nn::Sequential other(torch::nn::Linear(7, 7));
  EXPECT_ERROR(
      checkpoint::take_weights(*other, file, false), ErrorKind::usage,
      "[checkpoint] no tensor of " + file.string() + " fits the model; got 0.weight, 0.bias");
}

TEST_F(Weights, AloneAreNoCheckpointToGoOnFrom) {
  options_.checkpoint.weights_only = true;
  for (const char* strategy : {"ddp", "zero3"}) {
    options_.run.name = options_.trainer.strategy = strategy;
    const auto saved = fit(options_, 2);
    for (const auto& [name, tensor] : checkpoint::read_index(saved).tensors) {
      EXPECT_TRUE(name.starts_with(checkpoint::kModelPrefix)) << name;
    }
    auto options = options_;
    options.trainer.ckpt_path = "last";
    EXPECT_ERROR(fit(options, 1), ErrorKind::usage,
                 "[train] cannot resume from " + saved.string() +
                     "; got weights alone, expected a checkpoint of a run without "
                     "checkpoint.weights_only (model.weights starts a new run from them)");
    expect_starts_from(saved, checkpoint::load_weights(saved));
  }
}

TEST_F(Weights, ARunThatIsStoppedSavesAllTheSame) {
  options_.checkpoint.weights_only = true;
  options_.trainer.ckpt_path = "last";
  fit(options_, 2, /*stops=*/true);
  EXPECT_NO_THROW(fit(options_, 2));
}

// The name of the model in the first lines of a run, in its config.toml and in its checkpoint.
class ModelOfARun : public Weights {
 protected:
  std::string fit_and_log(const std::shared_ptr<Task>& task) {
    testing::internal::CaptureStderr();
    Trainer(options_, comm::local::alone()).fit(*task, Waves(), Waves());
    return testing::internal::GetCapturedStderr();
  }
  std::string config() const { return read_file(folder_ / "run/config.toml"); }
  std::filesystem::path run() const { return folder_ / "run"; }
};

TEST_F(ModelOfARun, IsNotOneOfTheZooWhereAProgramGaveAModule) {
  options_.model.name = "resnet18";
  const auto module = std::make_shared<torch::nn::LinearImpl>(3, 2);
  EXPECT_THAT(fit_and_log(std::make_shared<Task>(module)),
              HasSubstr("  model      torch::nn::LinearImpl, 8 parameters"));
  EXPECT_THAT(config(), AllOf(HasSubstr("[model]\nname = \"\"  # "), Not(HasSubstr("\"resnet18\"")),
                              Not(HasSubstr("hidden_width"))));
  EXPECT_EQ(read_checkpoint_options(run()).model.name, "");
  EXPECT_ERROR(load_from_checkpoint(run()), ErrorKind::usage,
               "[nn] no model is named; got an empty name, as in the options of a run whose module "
               "a program gave, expected one of " +
                   fmt::format("{}", fmt::join(nn::model_names(), ", ")) +
                   " (the program that made the module can load its weights)");
  const auto again = std::make_shared<torch::nn::LinearImpl>(3, 2);
  checkpoint::load_checkpoint(checkpoint::find_checkpoint(checkpoints(options_), "last"), *again);
  EXPECT_TRUE(again->weight.equal(module->weight));
}

TEST_F(ModelOfARun, IsTheZoosThatWasTrainedWhateverTheOptionsSay) {
  options_.model.name = "resnet18";
  const nn::ModelOptions given{.name = "mlp",
                               .num_classes = 2,
                               .in_channels = 3,
                               .image_size = 1,
                               .hidden_layers = 1,
                               .hidden_width = 7};
  const auto model = nn::make_model(given);
  EXPECT_THAT(fit_and_log(std::make_shared<Task>(model)), HasSubstr("  model      mlp, 44 param"));
  EXPECT_THAT(config(), AllOf(HasSubstr("name = \"mlp\"  # "), HasSubstr("hidden_width = 7  # ")));
  const auto again =
      load_from_checkpoint(checkpoint::find_checkpoint(checkpoints(options_), "last"));
  EXPECT_EQ(again->options()->num_classes, 2);
  // With one more block, it is no longer a model of the zoo.
  model->add_block("more", std::make_shared<torch::nn::LinearImpl>(2, 2));
  EXPECT_EQ(model->options(), nullptr);
}

TEST_F(Weights, AModelIsMadeAgainFromItsCheckpoint) {
  options_.model = {.name = "mlp",
                    .num_classes = 3,
                    .in_channels = 1,
                    .image_size = 5,
                    .hidden_layers = 1,
                    .hidden_width = 4};
  const auto model = nn::make_model(options_.model);
  const auto saved = checkpoint::save_checkpoint(
      comm::local::alone(), folder_.path(), {.model = checkpoint::model_state(*model), .rest = {}},
      checkpoint_metadata(options_), {});
  for (const auto& path : {saved, saved / checkpoint::kWeightsFile, folder_ / "last.safetensors"}) {
    const auto again = load_from_checkpoint(path);
    const auto own = checkpoint::model_state(*model), found = checkpoint::model_state(*again);
    ASSERT_EQ(own.size(), found.size());
    for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(own[i].second.equal(found[i].second));
  }
}

}  // namespace
}  // namespace troika::train
