// allocation_ranks RANKS: on the ranks that a launcher started, checks that Trainer::fit allocates
// no more often in a step than a hand-written loop of the same steps. The counts are the same in
// every run.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/support/allocations.h"
#include "tests/train/ranks_main.h"
#include "troika/base/temporary_folder.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/train/trainer.h"

namespace troika::train {
namespace {

using testing_support::allocations_of_thread;

constexpr int64_t kBatch = 8;
constexpr int64_t kBefore = 100;  // steps in which loaders, links and the like settle
constexpr int64_t kSteps = 500;

const nn::ModelOptions kModel{.name = "mlp", .image_size = 8, .hidden_width = 16};
const optim::OptimizerOptions kOptimizer{.name = "adamw", .lr = 1e-4};

class OneBatch : public data::Dataset {
 public:
  explicit OneBatch(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  data::Batch load(std::span<const int64_t>, std::optional<uint64_t>) const override {
    return batch_;
  }
  int64_t num_classes() const override { return 10; }
  std::vector<int64_t> input_shape() const override { return batch_.inputs.sizes().slice(1).vec(); }

 private:
  const int64_t size_;
  const data::Batch batch_{nn::example_input(kModel, kBatch), at::zeros({kBatch}, at::kLong)};
};

// Counts the allocations of this thread a step, from the start of one to that of a later one.
class Count {
 public:
  void start_step() {
    if (steps_++ == kBefore) first_ = allocations_of_thread();
    if (steps_ == kBefore + kSteps + 1) last_ = allocations_of_thread();
  }
  double per_step() const { return static_cast<double>(last_ - first_) / kSteps; }

 private:
  int64_t steps_ = 0, first_ = 0, last_ = 0;
};

class CountingTask : public Task {
 public:
  CountingTask() : Task(nn::make_model(kModel)) {}
  at::Tensor training_step(const data::Batch& batch) override {
    count.start_step();
    return Task::training_step(batch);
  }

  Count count;
};

double by_hand(const data::Dataset& data) {
  const auto model = nn::make_model(kModel);
  const auto optimizer = optim::make_optimizer(model->parameters(), kOptimizer);
  Count count;
  double sum = 0;
  for (int64_t i = 0; i <= kBefore + kSteps; ++i) {
    const auto batch = data.load({}, {});
    count.start_step();
    model->zero_grad(/*set_to_none=*/true);
    const auto loss = at::cross_entropy_loss(model->forward(batch.inputs), batch.targets);
    loss.backward();
    optimizer->step();
    sum += loss.item<double>();
  }
  EXPECT_GT(sum, 0);
  return count.per_step();
}

double by_trainer(const comm::Group& group, const data::Dataset& data) {
  const TemporaryFolder folder;
  TrainOptions options;
  options.run.folder = group.broadcast_text(folder.path().string());
  options.trainer.max_steps = kBefore + kSteps + 1;
  options.checkpoint.every_n_train_steps = 0;
  options.data.batch_size = kBatch;
  options.optimizer = kOptimizer;
  options.schedule.name = "constant";
  options.model = kModel;
  CountingTask task;
  Trainer trainer(options, group);
  trainer.fit(task, data, OneBatch(kBatch * group.size()));
  group.barrier();
  return task.count.per_step();
}

}  // namespace
}  // namespace troika::train

int main(int argc, char** argv) {
  using namespace troika;
  return train::main_of_ranks(
      argc, argv, "allocation_ranks RANKS", [](const comm::Group& group, const auto& more) {
        const train::OneBatch data(train::kBatch * group.size() *
                                   (train::kBefore + train::kSteps + 1));
        const double loop = train::by_hand(data);
        const double added = train::by_trainer(group, data) - loop;
        std::printf("allocations a step: %.2f by hand, %.2f more by the trainer\n", loop, added);
        EXPECT_LE(added, 0);
        return more.empty();
      });
}
