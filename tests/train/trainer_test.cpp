// The folder of a failed run. tests/cli tests runs that do not fail.
#include "troika/train/trainer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::train {
namespace {

class Ones : public data::Dataset {
 public:
  int64_t size() const override { return 8; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto count = static_cast<int64_t>(indices.size());
    return {at::ones({count, 2}), at::zeros({count}, at::kLong)};
  }
  int64_t num_classes() const override { return 2; }
  std::vector<int64_t> input_shape() const override { return {2}; }
};

// Fails in its n-th training step, counted from 1.
class FailingTask : public Task {
 public:
  explicit FailingTask(int64_t fails_at)
      : Task(std::make_shared<torch::nn::LinearImpl>(2, 2)), fails_at_(fails_at) {}

  at::Tensor training_step(const data::Batch& batch) override {
    if (++step_ == fails_at_) {
      before_failing();
      throw std::runtime_error("the loss went away");
    }
    return Task::training_step(batch);
  }
  std::function<void()> before_failing = [] {};

 private:
  const int64_t fails_at_;
  int64_t step_ = 0;
};

class FailedRun : public testing::Test {
 protected:
  FailedRun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.batch_size = 2;
    write_file_atomically(summary_file(), R"({"status": "finished"})");
  }

  std::filesystem::path summary_file() const { return folder_ / "run/summary.json"; }
  nlohmann::json summary() const { return nlohmann::json::parse(read_file(summary_file())); }
  // Returns the message of the error that fit() throws.
  std::string fit(Task& task) {
    const Ones points;
    try {
      Trainer(options_, comm::local::alone()).fit(task, points, points);
    } catch (const std::exception& problem) {
      return problem.what();
    }
    return "nothing";
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(FailedRun, SaysSoWithWhatItGotTo) {
  FailingTask task(7);
  EXPECT_EQ(fit(task), "the loss went away");
  const auto json = summary();
  EXPECT_EQ(json["status"], "failed");
  EXPECT_EQ(json["name"], "run");
  EXPECT_EQ(json["steps"], 6);
  EXPECT_EQ(json["samples"], 12);
  EXPECT_EQ(json["epochs"], 1);
  EXPECT_TRUE(json["validation_loss"].is_number());
  EXPECT_TRUE(std::filesystem::exists(json["checkpoint"].get<std::string>()));
}

TEST_F(FailedRun, SaysSoWhenItCannotStart) {
  options_.data.batch_size = 9;
  FailingTask task(0);
  EXPECT_EQ(fit(task),
            "[train] data.batch_size is more than there is to train on; got 9, expected <= 8 (the "
            "training data has 8 samples)");
  const auto json = summary();
  EXPECT_EQ(json["status"], "failed");
  EXPECT_EQ(json["world_size"], 1);
  EXPECT_EQ(json["steps"], 0);
  EXPECT_TRUE(json["train_loss"].is_null());
  EXPECT_TRUE(json["samples_per_second"].is_null());
  EXPECT_EQ(json["run_folder"], (folder_ / "run").string());
}

TEST_F(FailedRun, GivesBatchNormsBackWhereItCannotStart) {
  options_.trainer.sync_batchnorm = true;
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 3;
  comm::local::run(4, [&](comm::Group group) {
    torch::nn::BatchNorm1d norm(2);
    torch::nn::Sequential module(norm, torch::nn::Linear(2, 2));
    Task task(module.ptr());
    const Ones points;
    // The first to fail may be another rank.
    EXPECT_THROW(Trainer(options_, group).fit(task, points, points), Error);
    EXPECT_EQ(module->children()[0], norm.ptr());
    module->train();
    if (group.rank() == 0) module->forward(at::ones({4, 2}));  // alone
  });
}

TEST_F(FailedRun, TheCauseOutlivesASummaryThatCannotBeWritten) {
  FailingTask task(1);
  task.before_failing = [this] {
    EXPECT_FALSE(std::filesystem::exists(summary_file())) << "of the earlier run";
    std::filesystem::create_directories(summary_file() / "in the way");
  };
  EXPECT_EQ(fit(task), "the loss went away");
}

TEST_F(FailedRun, LogsGoWhereTheOptionSays) {
  options_.trainer.loggers = {"jsonl"};
  FailingTask task(7);
  EXPECT_EQ(fit(task), "the loss went away");
  EXPECT_THAT(read_file(folder_ / "run/metrics.jsonl"), testing::HasSubstr("\"validation/loss\":"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/metrics.csv"));
}

TEST_F(FailedRun, OneThatEndsWellFinishes) {
  FailingTask task(0);
  EXPECT_EQ(fit(task), "nothing");
  EXPECT_EQ(summary()["status"], "finished");
  EXPECT_EQ(summary()["steps"], 8);
}

}  // namespace
}  // namespace troika::train
