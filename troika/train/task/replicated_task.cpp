#include "troika/train/task/replicated_task.h"

#include <algorithm>
#include <utility>

#include "troika/compat/deferred_init.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<Task>& task) {
  return {task, &task->module()};
}

}  // namespace

std::vector<parallel::ModuleReplica> ReplicatedTask::replicas_of(
    const std::vector<std::shared_ptr<Task>>& tasks) {
  std::vector<parallel::ModuleReplica> result;
  for (const auto& task : tasks) {
    result.push_back({module_of(task), [this, task](const data::Batch& batch) {
                        task->log_to(log_target(), batch.size());
                        return task->training_step(batch);
                      }});
  }
  return result;
}

ReplicatedTask::ReplicatedTask(std::vector<std::shared_ptr<Task>> tasks)
    : Task(module_of(tasks.at(0)), BatchForward()),
      tasks_(tasks),
      replicated_(replicas_of(tasks)) {}

void ReplicatedTask::log_to(observe::MetricLog* log, int64_t batch_size) {
  Task::log_to(log, batch_size);
  tasks_[0]->log_to(log, batch_size);
}

void ReplicatedTask::use_loss_terms(const nn::LossTerms& terms) {
  for (const auto& task : tasks_) task->use_loss_terms(terms);
}

at::Tensor ReplicatedTask::training_step(const data::Batch& batch) {
  return replicated_.loss(batch);
}

OptimizerRecipe ReplicatedTask::configure_optimizers(const TrainOptions& options) {
  return tasks_[0]->configure_optimizers(options);
}

void ReplicatedTask::validation_step(const data::Batch& batch, Evaluation& evaluation) {
  tasks_[0]->validation_step(batch, evaluation);
}

void ReplicatedTask::test_step(const data::Batch& batch, Evaluation& evaluation) {
  tasks_[0]->test_step(batch, evaluation);
}

at::Tensor ReplicatedTask::predict_step(const data::Batch& batch) {
  return tasks_[0]->predict_step(batch);
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  const auto make = [&] { return std::make_unique<Task>(nn::make_model(options.model)); };
  // The number of threads does not depend on the cluster.
  const auto threads = resolve_plan(options, layout::Cluster()).threads;
  if (threads == 0) return make();
  std::vector<std::shared_ptr<Task>> tasks;
  for (int64_t i = 0; i < threads; ++i) tasks.push_back(make());
  return std::make_unique<ReplicatedTask>(std::move(tasks));
}

std::unique_ptr<Task> make_task_to_fit(const TrainOptions& options) {
  const auto plan = resolve_plan(options, layout::Cluster());
  const bool is_cut = plan.schedule != layout::kOneStageSchedule;
  // Weights in a file may have other names and shapes than the model. So they are loaded into a
  // module with all its parameters, which is not sharded yet.
  const bool cuts_layers = std::ranges::count(plan.mesh.axes(), layout::Axis::tensor) > 0;
  const bool is_shared_out = is_cut || cuts_layers || plan.exchange.zero_stage == 3;
  if (!is_shared_out || !options.weights.path.empty()) {
    return make_task(options);
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  auto values = std::make_shared<compat::DeferredInit>();
  std::unique_ptr<Task> task;
  values->record([&] { task = make_task(options); });
  if (!values->is_complete()) {
    generator.set_state(before);
    return make_task(options);
  }
  task->defer_values(std::move(values));
  return task;
}

}  // namespace troika::train
