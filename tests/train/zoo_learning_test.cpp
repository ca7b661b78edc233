// Models of the zoo on their usual data sets: a few steps lower the loss on samples that were not
// trained on.
#include <gtest/gtest.h>

#include <numeric>

#include "troika/compat/torch.h"
#include "troika/data/make_dataset.h"
#include "troika/nn/zoo.h"
#include "troika/train/task/task.h"

namespace troika::train {
namespace {

struct Learned {
  double loss_before, loss_after, accuracy_after;
};

double number(const at::Tensor& tensor) {
  return tensor.item<double>();
}

Learned learn(const nn::ModelOptions& model, const data::Dataset& training,
              const data::Batch& validation, int64_t steps, double lr) {
  constexpr int64_t kBatch = 32;
  torch::manual_seed(1);
  Task task(nn::make_model(model));
  torch::optim::Adam optimizer(task.module().parameters(), torch::optim::AdamOptions(lr));
  const auto judged = [&] {
    const at::NoGradGuard no_grad;
    task.module().eval();
    Evaluation evaluation;
    task.validation_step(validation, evaluation);
    task.module().train();
    return evaluation;
  };
  const double before = number(judged().loss.compute());
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> indices(kBatch);
    std::iota(indices.begin(), indices.end(), step * kBatch % training.size());
    optimizer.zero_grad();
    task.training_step(training.load(indices, {})).backward();
    optimizer.step();
  }
  const auto after = judged();
  return {before, number(after.loss.compute()), number(after.accuracy.compute())};
}

Learned learn_from(const nn::ModelOptions& model, const std::string& name, int64_t steps,
                   double lr) {
  const data::DataOptions options{.name = name, .train_samples = 640, .validation_samples = 64};
  const auto training = data::make_dataset(options, data::Split::train);
  const auto validation = data::make_dataset(options, data::Split::validation);
  std::vector<int64_t> all(64);
  std::iota(all.begin(), all.end(), 0);
  return learn(model, *training, validation->load(all, {}), steps, lr);
}

TEST(ZooLearns, UnetsFindObjects) {
  const auto learned = learn_from(
      {.name = "unet", .num_classes = 11, .depth = 2, .convolutions = 2, .base_width = 8},
      "shape_masks", 60, 1e-2);
  EXPECT_LT(learned.loss_after, 0.8 * learned.loss_before);
}

TEST(ZooLearns, S2vtsWriteCaptions) {
  const auto learned = learn_from({.name = "s2vt",
                                   .hidden_width = 64,
                                   .feature_width = 64,
                                   .vocab_size = 18,
                                   .context = 9,
                                   .width = 32},
                                  "captions", 150, 1e-2);
  EXPECT_LT(learned.loss_after, 0.5 * learned.loss_before);
  // More than knowing the grammar and the most frequent words would give.
  EXPECT_GT(learned.accuracy_after, 0.5);
}

// On the samples that it trains on, as no data set has images of its size without files.
TEST(ZooLearns, AlexnetsFitABatch) {
  torch::manual_seed(2);
  const nn::ModelOptions options{.name = "alexnet", .image_size = 63};
  Task task(nn::make_model(options));
  torch::optim::Adam optimizer(task.module().parameters(), torch::optim::AdamOptions(2e-4));
  const data::Batch batch{nn::example_input(options, 8), at::arange(8, at::kLong)};
  const auto loss = [&] { return task.training_step(batch); };
  const double before = number(loss());
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  EXPECT_LT(number(loss()), 0.95 * before);
}

}  // namespace
}  // namespace troika::train
