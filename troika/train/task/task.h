// A task: a model, its loss and its evaluation. A task does not know about ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/data/dataset.h"
#include "troika/metrics/mean.h"
#include "troika/metrics/stat_scores.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/observe/metric_log.h"
#include "troika/parallel/tensor/split_table.h"
#include "troika/train/task/hooks.h"
#include "troika/train/task/optimizer_recipe.h"
#include "troika/train/task/outputs.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace troika::compat {
class DeferredInit;
}  // namespace troika::compat

namespace troika::train {

struct TrainOptions;

// The accumulated results of a validation or test.
struct Evaluation {
  metrics::Mean loss;
  metrics::Accuracy accuracy;
};

// Classification of images or of the next token of a text: cross entropy of the model's output and
// the targets. Override loss(), or pass a loss, to change the loss; override the steps to change
// anything else; override hooks to run code between steps. A BatchForward or BatchLoss may read the
// batch's named tensors. Overridden steps need the whole model in one place; blocks and a loss do
// not (see require_cuttable() in cuttable.h).
class Task : public Hooks {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;
  using BatchForward = std::function<at::Tensor(const data::Batch& batch)>;
  // Returns a tensor of one element, the mean over the batch.
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;
  using BatchLoss = std::function<at::Tensor(const at::Tensor& outputs, const data::Batch& batch)>;
  // For models with several outputs.
  using OutputsLoss = std::function<at::Tensor(const Outputs& outputs, const data::Batch& batch)>;

  // `forward` must run `module` and return logits of shape [..., classes] for targets of shape
  // [...].
  Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward);
  Task(std::shared_ptr<torch::nn::Module> module, Forward forward);
  // With a custom loss, and then without accuracy.
  Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward, BatchLoss loss)
      : Task(std::move(module), std::move(forward)) {
    loss_ = of_only(std::move(loss));
  }
  Task(std::shared_ptr<torch::nn::Module> module, BatchForward forward, Loss loss)
      : Task(std::move(module), std::move(forward), of_targets(std::move(loss))) {}
  // For any module whose forward() takes and returns one tensor, also in LibTorch's holder, such as
  // torch::nn::Sequential.
  template <typename M>
  explicit Task(const torch::nn::ModuleHolder<M>& module) : Task(module.ptr()) {}
  template <typename M, typename L>
  Task(const torch::nn::ModuleHolder<M>& module, L loss) : Task(module.ptr(), std::move(loss)) {}
  template <typename M>
  explicit Task(std::shared_ptr<M> module)
      : Task(module, [module](const at::Tensor& inputs) { return module->forward(inputs); }) {}
  // The same with a custom loss, and then without accuracy.
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
  // Uses the model's own forward pass.
  explicit Task(const std::shared_ptr<nn::Model>& model);

  torch::nn::Module& module() { return *module_; }
  const torch::nn::Module& module() const { return *module_; }

  // Attaches the deferred initialization of a module that was made without values. Trainer::fit()
  // accepts this task; for any other use, call make_values() first.
  void defer_values(std::shared_ptr<compat::DeferredInit> values) { values_ = std::move(values); }
  bool defers_values() const { return values_ != nullptr; }
  std::shared_ptr<compat::DeferredInit> take_values() { return std::exchange(values_, nullptr); }
  // Initializes the module's values if they are missing.
  void make_values();

  // Sets what is added to the cross entropy of training steps from now on; evaluations stay plain.
  // Throws Error(usage) for terms of a task with a loss or a training step of its own.
  virtual void use_loss_terms(const nn::LossTerms& terms);

  // Sets the plan by which activations are recomputed from now on. For a plan that is not empty,
  // throws Error(usage) if blocks() does.
  void recompute(layout::RecomputePlan plan);
  // The model for recompute(). Throws Error(usage) unless has_blocks(), which is true if the task
  // was made of an nn::Model alone.
  const nn::Model& blocks() const;
  bool has_blocks() const { return model_ != nullptr; }
  // The inputs of the model of blocks: the batch's tensors by the names that the blocks take, and
  // `inputs` for single-tensor blocks. Throws Error(usage) if the batch lacks a name.
  nn::Tensors block_inputs(const data::Batch& batch) const;
  // The loss that the model of blocks computes itself, in place of outputs. Null if the task's loss
  // is not cross entropy or if the model's last block cannot compute it (nn::OutputLayer). Throws
  // Error(usage) for a batch without `targets`.
  std::shared_ptr<const nn::OutputLoss> output_loss(
      const data::Batch& batch, nn::OutputLoss::Kind kind = nn::OutputLoss::Kind::mean) const;

  // Returns the mean loss of the batch, a one-element tensor for backward(): the loss passed to the
  // constructor, or cross entropy of the only output. An override gets all outputs whole.
  virtual at::Tensor loss(const Outputs& outputs, const data::Batch& batch);
  // Runs the model's forward pass and returns loss().
  virtual at::Tensor training_step(const data::Batch& batch);
  // Adds the batch to `evaluation`. Called without gradients and in evaluation mode.
  virtual void validation_step(const data::Batch& batch, Evaluation& evaluation);
  // The same for Trainer::test(). Calls validation_step() unless overridden.
  virtual void test_step(const data::Batch& batch, Evaluation& evaluation);
  // Returns the predictions of a batch for Trainer::predict(): one row along dim 0 for each sample.
  // Returns forward(batch) unless overridden.
  virtual at::Tensor predict_step(const data::Batch& batch);
  // The names of the overridden functions among the four steps above, in their order.
  std::vector<std::string> own_steps() const;

  // The parts of the four steps after the forward pass, for a model that is cut into stages.
  // `given` are the tensors of its last block: the outputs or, with `is_loss`, the losses that
  // output_loss() asked for (Kind::mean in training, Kind::each in evaluation).
  at::Tensor finish_training(nn::Tensors given, bool is_loss, const data::Batch& batch);
  void finish_evaluation(nn::Tensors given, bool is_loss, const data::Batch& batch,
                         Evaluation& evaluation);
  at::Tensor finish_prediction(nn::Tensors given) const { return named(std::move(given)).only(); }

  // Returns the optimizer and the learning rates: those of the options, unless overridden.
  virtual OptimizerRecipe configure_optimizers(const TrainOptions& options);
  // Returns the table by which a tensor axis cuts the model of blocks: parallel::split_table() of a
  // model of the zoo, otherwise an empty one, unless overridden.
  virtual parallel::SplitTable split_table() const;
  // The number of modules that share a training step within this process.
  virtual int replicas() const { return 1; }
  // The object whose hooks a run calls.
  virtual Hooks& hooks() { return *this; }

  // Sets the target of log() in the next step and the number of samples of that step; null: log()
  // does nothing.
  virtual void log_to(observe::MetricLog* log, int64_t batch_size);

 protected:
  // Runs the model and returns its outputs; forward() returns the only output.
  Outputs outputs(const data::Batch& batch) const;
  at::Tensor forward(const data::Batch& batch) const { return outputs(batch).only(); }
  at::Tensor forward(const at::Tensor& inputs) const { return forward({inputs, {}}); }

  // Logs a number from a step, as MetricLog::log() does. Does nothing in steps outside a run.
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
  // Returns those of training steps; without gradients, none.
  nn::LossTerms terms() const;
  // Returns the outputs of the model of blocks with their names.
  Outputs named(nn::Tensors tensors) const;
  void judge(const Outputs& given, const data::Batch& batch, Evaluation& evaluation);
  void judge_losses(const nn::Tensors& rows, const data::Batch& batch, Evaluation& evaluation);

  std::shared_ptr<torch::nn::Module> module_;
  nn::LossTerms loss_terms_;
  std::shared_ptr<compat::DeferredInit> values_;
  std::shared_ptr<nn::Model> model_;  // the same module, if the task was made of an nn::Model
  // The guard is in the model, which copies of this task share.
  std::shared_ptr<nn::WrapperGuard> recomputing_ = std::make_shared<nn::WrapperGuard>();
  BatchForward forward_;  // runs a module without blocks
  OutputsLoss loss_;      // empty: cross entropy
  observe::MetricLog* log_ = nullptr;
  int64_t batch_size_ = 1;
};

}  // namespace troika::train
