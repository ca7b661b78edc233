// A task in several threads of one process: strategy `dp`.
#pragma once

#include <memory>
#include <vector>

#include "troika/parallel/replicated.h"
#include "troika/train/task/task.h"

namespace troika::train {

// Trains as the first of the tasks does, on shares of each batch side by side (parallel::Replicated
// says how far that is the same); validates, tests and predicts by the first task, whose hooks are
// called. What shares of a batch log is added up in the order in which they come.
class ReplicatedTask : public Task {
 public:
  // Tasks that were made by the same function, each with a module of its own; at least one.
  explicit ReplicatedTask(std::vector<std::shared_ptr<Task>> tasks);

  at::Tensor training_step(const data::Batch& batch) override;
  OptimizerRecipe configure_optimizers(const TrainOptions& options) override;
  void validation_step(const data::Batch& batch, Evaluation& evaluation) override;
  void test_step(const data::Batch& batch, Evaluation& evaluation) override;
  at::Tensor predict_step(const data::Batch& batch) override;
  int replicas() const override { return replicated_.size(); }
  void log_to(observe::MetricLog* log, int64_t batch_size) override;
  Hooks& hooks() override { return first_->hooks(); }

 private:
  std::vector<parallel::ModuleReplica> replicas_of(const std::vector<std::shared_ptr<Task>>& tasks);

  const std::shared_ptr<Task> first_;
  parallel::Replicated replicated_;
};

// A task for the model of the options: replicated where the plan that they mean has threads.
std::unique_ptr<Task> make_task(const TrainOptions& options);
// The same for Trainer::fit(). Where ranks share the parameters out, its module has no values yet,
// and no memory for large tensors: fit() makes on each rank what that owns.
std::unique_ptr<Task> make_task_to_fit(const TrainOptions& options);

}  // namespace troika::train
