// A task: a model, its loss and its evaluation. A task knows nothing of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/compat/deferred_init.h"
#include "troika/data/dataset.h"
#include "troika/metrics/mean.h"
#include "troika/metrics/stat_scores.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/observe/metric_log.h"
#include "troika/train/task/hooks.h"
#include "troika/train/task/optimizer_recipe.h"
#include "troika/train/task/outputs.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace troika::train {

struct TrainOptions;

// The sums of a validation or test.
struct Evaluation {
  metrics::Mean loss;
  metrics::Accuracy accuracy;
};

// Classification of images, or of the next token of a text: cross entropy of the model's output
// against the targets. A forward and a loss of the whole batch may read its named tensors. Override
// loss(), or give one, for another loss; the steps for anything else; and hooks for what is to
// happen between them. A step of its own needs the whole model in one place, blocks and a loss do
// not (require_cuttable() in cuttable.h).
class Task : public Hooks {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;
  using BatchForward = std::function<at::Tensor(const data::Batch& batch)>;
  // A tensor of one element, the mean over the batch.
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;
  using BatchLoss = std::function<at::Tensor(const at::Tensor& outputs, const data::Batch& batch)>;
  // For models of several outputs.
  using OutputsLoss = std::function<at::Tensor(const Outputs& outputs, const data::Batch& batch)>;

  // `forward` must run `module`: logits of shape [..., classes] for targets of shape [...].
  Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward);
  Task(std::shared_ptr<torch::nn::Module> module, Forward forward);
  // With another loss than cross entropy, and then without accuracy.
  Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward, BatchLoss loss)
      : Task(std::move(module), std::move(forward)) {
    loss_ = of_only(std::move(loss));
  }
  Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward, Loss loss)
      : Task(std::move(module), std::move(forward), of_targets(std::move(loss))) {}
  // For any module with a forward of one tensor, also in LibTorch's holder, as
  // torch::nn::Sequential.
  template <typename M>
  explicit Task(const torch::nn::ModuleHolder<M>& module) : Task(module.ptr()) {}
  template <typename M, typename L>
  Task(const torch::nn::ModuleHolder<M>& module, L loss) : Task(module.ptr(), std::move(loss)) {}
  template <typename M>
  explicit Task(std::shared_ptr<M> module)
      : Task(module, [module](const at::Tensor& inputs) { return module->forward(inputs); }) {}
  // The same with another loss than cross entropy, and then without accuracy.
  template <typename M>
  Task(std::shared_ptr<M> module, Loss loss) : Task(module) {
    loss_ = of_only(of_targets(std::move(loss)));
  }
  template <typename M>
  Task(std::shared_ptr<M> module, BatchLoss loss) : Task(module) {
    loss_ = of_only(std::move(loss));
  }
  template <typename M>
  Task(std::shared_ptr<M> module, OutputsLoss loss) : Task(module) {
    loss_ = std::move(loss);
  }
  // The model's own forward pass.
  explicit Task(const std::shared_ptr<nn::Model>& model);

  torch::nn::Module& module() { return *module_; }

  // For a module that was made without values: what makes them, until a run has its own place for
  // each. Trainer::fit() takes such a task; for all else call make_values() first.
  void defer_values(std::shared_ptr<compat::DeferredInit> values) { values_ = std::move(values); }
  bool defers_values() const { return values_ != nullptr; }
  std::shared_ptr<compat::DeferredInit> take_values() { return std::exchange(values_, nullptr); }
  // Gives the module its values, if it lacks them.
  void make_values();

  // From now on, activations are recomputed by this plan. Throws Error(usage), but for an empty
  // plan, where blocks() does.
  void recompute(layout::RecomputePlan plan);
  // The model that recompute() plans for. Throws Error(usage) unless has_blocks(): the task was
  // made of an nn::Model alone.
  const nn::Model& blocks() const;
  bool has_blocks() const { return model_ != nullptr; }
  // What that model is called with: the batch's tensors by the names that its blocks take, and
  // `inputs` for what blocks of one tensor do. Throws Error(usage) for a name the batch lacks.
  nn::Tensors block_inputs(const data::Batch& batch) const;
  // The loss to ask that model for, in place of its outputs; null where the task has another loss
  // than cross entropy, or no model whose last block can be asked (nn::OutputLayer). Throws
  // Error(usage) for a batch without `targets`.
  std::shared_ptr<const nn::OutputLoss> output_loss(
      const data::Batch& batch, nn::OutputLoss::Kind kind = nn::OutputLoss::Kind::mean) const;

  // The mean loss of the batch, a tensor of one element to call backward() on: the loss that the
  // task was made with, or else cross entropy of the only output. An override is given all outputs
  // whole.
  virtual at::Tensor loss(const Outputs& outputs, const data::Batch& batch);
  // The same of the batch alone: the model's forward pass and loss().
  virtual at::Tensor training_step(const data::Batch& batch);
  // Adds the batch to the evaluation; called without gradients and in evaluation mode.
  virtual void validation_step(const data::Batch& batch, Evaluation& evaluation);
  // The same for Trainer::test(): validation_step(), unless overridden.
  virtual void test_step(const data::Batch& batch, Evaluation& evaluation);
  // For Trainer::predict(): forward(batch), unless overridden. One row of the result's first
  // dimension for each sample of the batch.
  virtual at::Tensor predict_step(const data::Batch& batch);
  // The names of those of the four steps above that are overridden, in their order.
  std::vector<std::string> own_steps() const;
  // The optimizer and the learning rates: those of the options, unless overridden.
  virtual OptimizerRecipe configure_optimizers(const TrainOptions& options);
  // How many modules share the work of a training step inside this process.
  virtual int replicas() const { return 1; }
  // Whose hooks a run calls.
  virtual Hooks& hooks() { return *this; }

  // Where log() of the next step goes, and how many samples it is of; null: nowhere.
  virtual void log_to(observe::MetricLog* log, int64_t batch_size);

 protected:
  // The model's outputs; forward() gives the only one.
  Outputs outputs(const data::Batch& batch) const;
  at::Tensor forward(const data::Batch& batch) const { return outputs(batch).only(); }
  at::Tensor forward(const at::Tensor& inputs) const { return forward({inputs, {}}); }

  // For the steps: logs a number as MetricLog::log() does. In steps that are not part of a run it
  // does nothing.
  template <typename Number>
  void log(const std::string& name, const Number& value, observe::LogOptions options = {}) {
    if (!log_) return;
    options.batch_size = options.batch_size.value_or(batch_size_);
    log_->log(name, value, options);
  }
  observe::MetricLog* log_target() const { return log_; }

 private:
  static BatchForward of_inputs(Forward forward);
  static BatchLoss of_targets(Loss loss);
  static OutputsLoss of_only(BatchLoss loss);
  bool has_own_loss() const;

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<compat::DeferredInit> values_;
  std::shared_ptr<nn::Model> model_;  // the same, if the task was made of its blocks
  // In the model, which copies of this task share.
  std::shared_ptr<nn::WrapperGuard> recomputing_ = std::make_shared<nn::WrapperGuard>();
  BatchForward forward_;  // of a module without blocks
  OutputsLoss loss_;      // none: cross entropy
  observe::MetricLog* log_ = nullptr;
  int64_t batch_size_ = 1;
};

}  // namespace troika::train
