// "Evaluation metrics identical for every rank count".
#include <gtest/gtest.h>

#include <mutex>

#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/zoo.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

// Images and classes by a fixed function of their numbers.
class Pictures : public data::Dataset {
 public:
  explicit Pictures(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    std::vector<at::Tensor> images, classes;
    for (const int64_t i : indices) {
      images.push_back(at::sin(at::arange(3 * 4 * 4) * 0.37 + i).view({3, 4, 4}));
      classes.push_back(at::scalar_tensor(i % 5, at::kLong));
    }
    return {at::stack(images), at::stack(classes)};
  }
  int64_t num_classes() const override { return 5; }
  std::vector<int64_t> input_shape() const override { return {3, 4, 4}; }

 private:
  const int64_t size_;
};

std::shared_ptr<nn::Model> make_model(const std::string& name) {
  static std::mutex mutex;  // LibTorch's generator belongs to the process
  const std::lock_guard lock(mutex);
  torch::manual_seed(11);
  return nn::make_model({.name = name, .num_classes = 5, .image_size = 4, .hidden_width = 20});
}

TrainOptions one_step(const std::filesystem::path& folder, double lr) {
  TrainOptions options;
  options.run.folder = folder.string();
  options.trainer.max_steps = 1;
  options.trainer.enable_progress_bar = false;
  options.data.global_batch_size = 84;  // divisible by 1, 2, 3, 4 and 7
  options.optimizer.lr = lr;
  options.optimizer.weight_decay = 0;
  return options;
}

observe::RunSummary fit(const TrainOptions& options, int ranks,
                        const std::shared_ptr<nn::Model>& model) {
  observe::RunSummary summary;
  comm::local::run(ranks, [&](comm::Group group) {
    const bool first = group.rank() == 0;
    Task task(first ? model : make_model(options.model.name));
    const auto own = Trainer(options, group).fit(task, Pictures(84), Pictures(101));
    if (first) summary = own;
  });
  return summary;
}

// Every number of ranks evaluates the same weights, which a step of this size does not change.
TEST(Evaluation, IsTheSameForEveryNumberOfRanks) {
  const TemporaryFolder folder;
  auto options = one_step(folder.path(), 1e-30);
  options.model.name = "mlp";
  // In matrix products, the rounding of a sample depends on the size of its batch.
  for (const auto& [precision, tolerance] : {std::pair("64", 1e-14), {"32", 1e-7}}) {
    options.trainer.precision = precision;
    const observe::RunSummary alone = fit(options, 1, make_model("mlp"));
    EXPECT_GT(alone.validation_accuracy, 0);
    EXPECT_LT(alone.validation_accuracy, 1);
    for (const int ranks : {2, 3, 4, 7}) {
      const observe::RunSummary summary = fit(options, ranks, make_model("mlp"));
      EXPECT_EQ(summary.validation_accuracy, alone.validation_accuracy) << ranks;
      EXPECT_NEAR(summary.validation_loss, alone.validation_loss, tolerance) << ranks;
    }
  }
}

TEST(Evaluation, IgnoredTargetsDoNotCount) {
  Task task(std::make_shared<torch::nn::IdentityImpl>());
  Evaluation evaluation;
  task.validation_step(
      {torch::tensor({{5.0, 1.0}, {2.0, 2.0}}), torch::tensor({0, -100}, torch::kLong)},
      evaluation);
  EXPECT_NEAR(evaluation.loss.value(), std::log1p(std::exp(-4.0)), 1e-6);
  EXPECT_EQ(evaluation.accuracy.value(), 1);
}

TEST(Trainer, SynchronisedBatchNormsMakeTheStepOfOneProcess) {
  const TemporaryFolder folder;
  auto options = one_step(folder.path(), 0.1);
  options.model.name = "resnet20";
  options.trainer.precision = "64";
  options.trainer.sync_batchnorm = true;
  const auto model = make_model("resnet20"), reference = make_model("resnet20");
  fit(options, 3, model);
  fit(options, 1, reference);
  const auto mean = [](nn::Model& m) { return m.named_buffers()["bn1.running_mean"]; };
  EXPECT_TRUE(mean(*model).allclose(mean(*reference), 1e-12, 1e-12));
  const auto weight = [](nn::Model& m) { return m.named_parameters()["conv1.weight"]; };
  EXPECT_TRUE(weight(*model).allclose(weight(*reference), 1e-10, 1e-10));
  model->train();
  model->forward(at::ones({2, 3, 4, 4}, at::kDouble));  // alone again
}

}  // namespace
}  // namespace troika::train
