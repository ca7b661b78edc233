// What is learned: a module, its loss and how it is judged. A task knows nothing of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "troika/data/dataset.h"
#include "troika/train/metrics/mean.h"
#include "troika/train/metrics/stat_scores.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {
class Model;
}

namespace troika::train {

// What validation adds up.
struct Evaluation {
  Mean loss;
  Accuracy accuracy;
};

// Classification of images, or of the next token of a text: cross entropy of forward(inputs)
// against the targets. Override the steps for anything else.
class Task {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;

  // `forward` must run `module`: logits of shape [..., classes] for targets of shape [...].
  Task(std::shared_ptr<torch::nn::Module> module, Forward forward);
  // For any module with a forward of one tensor.
  template <typename M>
  explicit Task(std::shared_ptr<M> module)
      : Task(module, [module](const at::Tensor& inputs) { return module->forward(inputs); }) {}
  // The model's own forward pass, which recompute() can change.
  explicit Task(const std::shared_ptr<nn::Model>& model);
  virtual ~Task() = default;

  torch::nn::Module& module() { return *module_; }

  // From now on, activations are recomputed by this policy (nn/recompute/recompute.h). Throws
  // Error(usage) for one it does not know, and, but for "none", unless the task was made of an
  // nn::Model alone.
  void recompute(const std::string& policy);

  // The mean loss of the batch, a tensor of one element to call backward() on.
  virtual at::Tensor training_step(const data::Batch& batch);
  // Adds the batch to the evaluation; called without gradients and in evaluation mode.
  virtual void validation_step(const data::Batch& batch, Evaluation& evaluation);
  // How many modules share the work of a training step inside this process.
  virtual int replicas() const { return 1; }

 protected:
  at::Tensor forward(const at::Tensor& inputs) const { return forward_(inputs); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<nn::Model> model_;  // the same, if recompute() may change how it is run
  Forward forward_;
};

}  // namespace troika::train
