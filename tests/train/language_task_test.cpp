// Tasks that ask a language model for its loss, against the loss of its logits.
#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/base/memory.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/train/task/task.h"

namespace troika::train {
namespace {

class LanguageTask : public testing::Test {
 protected:
  static constexpr int64_t kClasses = 17'000, kSamples = 4, kLength = 150;

  static std::shared_ptr<nn::Model> make() {
    torch::manual_seed(3);
    auto model = nn::make_model({.name = "gpt",
                                 .vocab_size = kClasses,
                                 .context = kLength,
                                 .layers = 1,
                                 .heads = 2,
                                 .width = 4});
    model->to(at::kDouble);
    return model;
  }

  LanguageTask() { batch_["targets"].select(1, 5).fill_(metrics::kIgnored); }

  at::Tensor loss_of(const at::Tensor& logits, at::Reduction::Reduction reduction) const {
    return at::cross_entropy_loss(logits.flatten(0, -2), batch_["targets"].flatten(), {},
                                  reduction);
  }

  const std::shared_ptr<nn::Model> model_ = make();
  const data::Batch batch_{at::randint(kClasses, {kSamples, kLength}, at::kLong),
                           at::randint(kClasses, {kSamples, kLength}, at::kLong)};
};

TEST_F(LanguageTask, TrainsOnTheLossOfTheLogits) {
  Task task(model_);
  const auto loss = task.training_step(batch_);
  EXPECT_NEAR(loss.item<double>(),
              loss_of(model_->forward(batch_["inputs"]), at::Reduction::Mean).item<double>(),
              1e-12);
}

// Validations report the perplexity of the model, whatever it was trained on.
TEST_F(LanguageTask, AddsTermsInTrainingAlone) {
  Task task(model_), plain(model_);
  task.use_loss_terms({0.1, 1e-2});
  const auto logits = model_->forward(batch_["inputs"]).flatten(0, -2);
  const auto targets = batch_["targets"].flatten();
  const auto sums = logits.logsumexp(1).masked_select(targets.ne(metrics::kIgnored));
  const auto expected =
      at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, metrics::kIgnored, 0.1) +
      1e-2 * sums.square().mean();
  EXPECT_NEAR(task.training_step(batch_).item<double>(), expected.item<double>(), 1e-12);
  const at::NoGradGuard no_grad;
  Evaluation found, alone;
  task.validation_step(batch_, found);
  plain.validation_step(batch_, alone);
  EXPECT_EQ(found.loss.compute().item<double>(), alone.loss.compute().item<double>());
}

TEST_F(LanguageTask, RefusesTermsOfAnotherLoss) {
  Task task(model_, [](const at::Tensor& outputs, const at::Tensor&) { return outputs.sum(); });
  task.use_loss_terms({});
  EXPECT_ERROR(task.use_loss_terms({.z_loss = 1e-4}), ErrorKind::usage,
               "[train] label smoothing and z-loss are terms of the cross entropy; got "
               "trainer.label_smoothing or trainer.z_loss, and a task with its own loss or "
               "training_step, expected neither, or a task without them (such a task can add "
               "nn::LossTerms to its own cross entropy)");
}

TEST_F(LanguageTask, ValidatesOnTheLossOfTheLogits) {
  Task task(model_);
  const at::NoGradGuard no_grad;
  const auto logits = model_->forward(batch_["inputs"]);
  batch_["targets"].select(0, 1).copy_(logits.argmax(-1)[1]);
  Evaluation found, expected;
  task.validation_step(batch_, found);
  expected.loss.update(loss_of(logits, at::Reduction::None),
                       batch_["targets"].flatten().ne(metrics::kIgnored));
  expected.accuracy.update(logits, batch_["targets"]);
  EXPECT_NEAR(found.loss.compute().item<double>(), expected.loss.compute().item<double>(), 1e-12);
  EXPECT_GT(found.accuracy.compute().item<double>(), 0.2);
  EXPECT_EQ(found.accuracy.compute().item<double>(), expected.accuracy.compute().item<double>());
}

TEST_F(LanguageTask, HasWholeLogitsNeitherInTrainingNorInValidation) {
  compat::count_tensor_memory();
  Task task(model_);
  const double logits = 8.0 * kSamples * kLength * kClasses;
  int64_t before = memory::live();
  memory::restart_peak();
  task.training_step(batch_).backward();
  EXPECT_LT(static_cast<double>(memory::peak() - before), logits);
  before = memory::live();
  memory::restart_peak();
  const at::NoGradGuard no_grad;
  Evaluation evaluation;
  task.validation_step(batch_, evaluation);
  // Single losses take logits, a copy of them and logarithms of a part at a time.
  EXPECT_LT(static_cast<double>(memory::peak() - before), 1.5 * logits);
}

// A program's own function that runs the model gets logits.
TEST_F(LanguageTask, AsksNoModelThatAProgramRunsItself) {
  Task task(model_, [this](const at::Tensor& inputs) { return model_->forward(inputs) * 2; });
  EXPECT_NEAR(task.training_step(batch_).item<double>(),
              loss_of(model_->forward(batch_["inputs"]) * 2, at::Reduction::Mean).item<double>(),
              1e-12);
  EXPECT_EQ(Task(model_).predict_step(batch_).dim(), 3);
}

// A task that overrides the loss gets logits, too, whatever it does with them.
class Smoothed : public Task {
 public:
  using Task::Task;
  at::Tensor loss(const Outputs& outputs, const data::Batch& batch) override {
    sizes = outputs.only().sizes().vec();
    return Task::loss(outputs, batch) + 1;
  }
  std::vector<int64_t> sizes;
};

TEST_F(LanguageTask, ThatOverridesItsLossIsGivenLogits) {
  Smoothed task(model_);
  const at::NoGradGuard no_grad;
  const auto plain = loss_of(model_->forward(batch_["inputs"]), at::Reduction::Mean);
  EXPECT_NEAR(task.training_step(batch_).item<double>(), plain.item<double>() + 1, 1e-12);
  EXPECT_EQ(task.sizes, (std::vector<int64_t>{kSamples, kLength, kClasses}));
  Evaluation evaluation;
  task.validation_step(batch_, evaluation);
  EXPECT_NEAR(evaluation.loss.compute().item<double>(), plain.item<double>() + 1, 1e-12);
}

TEST_F(LanguageTask, OfAnotherLossIsGivenLogits) {
  Task task(model_,
            [](const at::Tensor& logits, const at::Tensor&) { return logits.square().mean(); });
  EXPECT_NEAR(task.training_step(batch_).item<double>(),
              model_->forward(batch_["inputs"]).square().mean().item<double>(), 1e-12);
}

}  // namespace
}  // namespace troika::train
