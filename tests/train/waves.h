// Small data sets and models that are the same in every process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/nn/batch_norm.h"
#include "troika/nn/sequential.h"
#include "troika/train/task/task.h"

namespace troika::train {

// 26 points; the class of each is the sign of a function of its number.
class Waves : public data::Dataset {
 public:
  int64_t size() const override { return 26; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto angles = numbers.to(at::kFloat).unsqueeze(1) * at::tensor({0.7, 1.3, 2.9});
    return {at::sin(angles).to(at::kFloat), at::sin(angles.sum(1)).gt(0).to(at::kLong)};
  }
  int64_t num_classes() const override { return 2; }
  std::vector<int64_t> input_shape() const override { return {3}; }
};

// The first `size` of the points.
class FewWaves : public Waves {
 public:
  explicit FewWaves(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }

 private:
  const int64_t size_;
};

// Sets the weights of a module to waves: the same in every process, and on ranks that are threads
// and share a generator.
inline void fill_with_waves(const torch::nn::Module& module, double factor = 1) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : module.parameters()) {
    const auto waves = torch::sin(torch::arange(parameter.numel(), torch::kDouble) + ++phase);
    parameter.copy_(waves.view_as(parameter) * factor);
  }
}

// A task in which ranks log different numbers.
class LoggingTask : public Task {
 public:
  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override {
    log("greatest", batch.inputs.max(),
        {.on_step = true, .on_epoch = true, .reduce = observe::LogReduction::max});
    log("mean", batch.inputs.mean(), {.on_epoch = true, .sync_dist = true});
    return Task::training_step(batch);
  }
};

inline std::shared_ptr<nn::Model> make_waves_model(int64_t width, double dropout) {
  torch::nn::Sequential net(torch::nn::Linear(3, width),
                            nn::BatchNorm(torch::nn::BatchNormOptions(width)), torch::nn::Tanh(),
                            torch::nn::Dropout(dropout), torch::nn::Linear(width, 2));
  fill_with_waves(*net);
  return nn::from_sequential(net);
}

inline std::shared_ptr<Task> make_waves_task(int64_t width, double dropout) {
  return std::make_shared<LoggingTask>(make_waves_model(width, dropout));
}

// Whether a checkpoint's state of this name may differ between equal runs.
inline bool is_measured(const std::string& name) {
  return name == "loops.train_seconds" || name == "loops.seconds" || name == "link_bandwidths" ||
         name == "run_id" || name == "callback.model_checkpoint.others" ||
         name == "callback.model_checkpoint.chosen";
}

}  // namespace troika::train
