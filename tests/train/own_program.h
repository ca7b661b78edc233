// A user's program: a module, a loss and a data set that are not built in.
#pragma once

#include <gmock/gmock.h>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/trainer.h"

namespace troika::train {

// A data set of `width` numbers, whose sum is the target.
class Sums : public data::Dataset {
 public:
  explicit Sums(int64_t size = 16, int64_t width = 4) : size_(size), width_(width) {}
  int64_t size() const override { return size_; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto inputs = at::sin(numbers.to(at::kFloat).unsqueeze(1) * at::arange(1, width_ + 1));
    return {inputs, inputs.sum(1, true)};
  }

 private:
  const int64_t size_, width_;
};

inline torch::nn::Sequential make_sum_net(int64_t width = 4, int64_t hidden = 8) {
  return torch::nn::Sequential(torch::nn::Linear(width, hidden), torch::nn::BatchNorm1d(hidden),
                               torch::nn::ReLU(), torch::nn::Dropout(0.1),
                               torch::nn::Linear(hidden, 1));
}

inline at::Tensor mean_square(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::mse_loss(outputs, targets);
}

class OwnProgram : public testing::Test {
 protected:
  OwnProgram() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 4;
  }

  // Runs a fit() and returns the text that it prints.
  std::string said_by_fit(Task& task, observe::RunSummary* summary = nullptr) {
    testing::internal::CaptureStderr();
    const auto own = Trainer(options_, comm::local::alone()).fit(task, Sums(), Sums());
    if (summary) *summary = own;
    return testing::internal::GetCapturedStderr();
  }
  std::string file(const std::string& name) const { return read_file(folder_ / "run" / name); }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

// A task whose validation logs only its own metric.
class JudgedByItself : public Task {
 public:
  using Task::Task;
  void validation_step(const data::Batch& batch, Evaluation&) override {
    log("f1", batch.size() / 8.0, {.sync_dist = true});
  }
};

}  // namespace troika::train
