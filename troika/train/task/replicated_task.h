// A task that several threads of one process share: strategy `dp`.
#pragma once

#include <memory>
#include <vector>

#include "troika/parallel/replicated.h"
#include "troika/train/task/task.h"

namespace troika::train {

// Trains as the first task would, with the shares of each batch side by side in threads
// (parallel::Replicated documents how far the results agree). Validates, tests and predicts with
// the first task, and calls its hooks. Numbers logged by several shares are added up in the order
// of arrival.
class ReplicatedTask : public Task {
 public:
  // `tasks` were made by the same function, each with its own module; at least one.
  explicit ReplicatedTask(std::vector<std::shared_ptr<Task>> tasks);

  at::Tensor training_step(const data::Batch& batch) override;
  OptimizerRecipe configure_optimizers(const TrainOptions& options) override;
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override;
  void test_step(const data::Batch& batch, Evaluation& evaluation) override;
  at::Tensor predict_step(const data::Batch& batch) override;
  void use_loss_terms(const nn::LossTerms& terms) override;
  int replicas() const override { return replicated_.size(); }
  void log_to(observe::MetricLog* log, int64_t batch_size) override;
  Hooks& hooks() override { return tasks_[0]->hooks(); }

 private:
  std::vector<parallel::ModuleReplica> replicas_of(const std::vector<std::shared_ptr<Task>>& tasks);

  const std::vector<std::shared_ptr<Task>> tasks_;
  parallel::Replicated replicated_;
};

// Makes a task for the model of the options, replicated if their plan has threads.
std::unique_ptr<Task> make_task(const TrainOptions& options);
// The same for Trainer::fit(). If ranks shard the parameters (ZeRO 3), the module has no values yet
// and large tensors have no memory: fit() makes only this rank's shards.
std::unique_ptr<Task> make_task_to_fit(const TrainOptions& options);

}  // namespace troika::train
