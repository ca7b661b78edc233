// Runs with dropout: the same masks, hence the same losses, on any layout.
#include <gmock/gmock.h>

#include <mutex>

#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

// 32 texts of 6 tokens, and after each token the next.
class CountedTokens : public data::Dataset {
 public:
  int64_t size() const override { return 32; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto first = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto tokens = first.unsqueeze(1).mul(7).add(at::arange(7).square()).remainder(11);
    return {tokens.slice(1, 0, 6).contiguous(), tokens.slice(1, 1).contiguous()};
  }
  int64_t num_classes() const override { return 11; }
  std::vector<int64_t> input_shape() const override { return {6}; }
};

std::shared_ptr<Task> make_dropping_gpt() {
  torch::manual_seed(5);
  return std::make_shared<Task>(nn::make_model({.name = "gpt",
                                                .dropout = 0.3,
                                                .vocab_size = 11,
                                                .context = 6,
                                                .layers = 2,
                                                .heads = 2,
                                                .width = 8}));
}

class DropoutRun : public testing::Test {
 protected:
  DropoutRun() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 16;
    options_.optimizer.lr = 0.1;
  }

  using MakeTask = std::function<std::shared_ptr<Task>()>;
  // The loss and weights of rank 0.
  std::pair<double, std::vector<at::Tensor>> fit(int ranks,
                                                 const MakeTask& make = make_dropping_gpt) {
    std::pair<double, std::vector<at::Tensor>> result;
    comm::local::run_ranks(comm::local::make(ranks), [&](const comm::Group& group) {
      const auto task = [&] {
        const std::scoped_lock lock(generator_);  // threads share it
        return make();
      }();
      const CountedTokens tokens;
      const auto summary = Trainer(options_, group).fit(*task, tokens, tokens);
      if (group.rank() != 0) return;
      result.first = summary.train_loss;
      for (const auto& parameter : task->module().parameters()) {
        result.second.push_back(parameter.detach().clone());
      }
    });
    return result;
  }

  void expect_same(const std::pair<double, std::vector<at::Tensor>>& found, const char* what) {
    EXPECT_NEAR(found.first, alone_.first, 1e-10) << what;
    for (size_t i = 0; i < alone_.second.size(); ++i) {
      EXPECT_TRUE(found.second[i].allclose(alone_.second[i], 1e-9, 1e-10)) << what << ": " << i;
    }
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
  std::mutex generator_;
  std::pair<double, std::vector<at::Tensor>> alone_;
};

TEST_F(DropoutRun, IsTheSameOnAnyNumberOfRanksAndMicroBatches) {
  alone_ = fit(1);
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batches : {1, 2, 4}) {
      options_.trainer.accumulate_grad_batches = micro_batches;
      options_.data.global_batch_size = 16 / micro_batches;
      expect_same(fit(ranks),
                  (std::to_string(ranks) + " x " + std::to_string(micro_batches)).c_str());
    }
  }
}

TEST_F(DropoutRun, IsTheSameWithStrategiesAndRecomputation) {
  alone_ = fit(1);
  options_.trainer.strategy = "zero3";
  expect_same(fit(4), "zero3");
  options_.trainer.recompute = "full";
  expect_same(fit(2), "zero3 and recomputation");
  options_.trainer.strategy = "ddp";
  options_.trainer.recompute = "budget:1MiB";
  expect_same(fit(1), "budget");
  options_.trainer.recompute = "none";
  options_.trainer.strategy = "dp";
  options_.trainer.devices = 3;
  expect_same(fit(1,
                  [] {
                    std::vector<std::shared_ptr<Task>> tasks;
                    for (int i = 0; i < 3; ++i) tasks.push_back(make_dropping_gpt());
                    return std::make_shared<ReplicatedTask>(tasks);
                  }),
              "dp");
}

}  // namespace
}  // namespace troika::train
