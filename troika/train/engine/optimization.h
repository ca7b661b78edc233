// The optimizer of a run, with what its precision asks for around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/nn/precision.h"
#include "troika/optim/grad_scaler.h"
#include "troika/optim/master_weights.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/parameter_store.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::checkpoint {
class CheckpointReader;
}

namespace troika::train {

// Float32 masters of parameters in half precision; masters on the host of parameters on GPUs where
// the optimizer does not step there, or its states are offloaded; a scaled loss where gradients are
// in float16.
class Optimization {
 public:
  // Where ranks hold different gradients, `agree` tells of an overflow on any of them.
  Optimization(const nn::Precision& precision, std::vector<optim::Parameter> parameters,
               const OptimizerRecipe& recipe, optim::GradScaler::Agree agree = {});
  // Steps the parameters this rank owns. `store` must outlive it. Throws Error(usage) for an
  // optimizer of the recipe's own that needs whole parameters where the store cuts them.
  Optimization(const nn::Precision& precision, const parallel::ParameterStore& store,
               const OptimizerRecipe& recipe);

  double learning_rate() const { return optimizer_->learning_rate(); }
  void set_learning_rate(double rate) { optimizer_->set_learning_rate(rate); }

  // The stepped tensors: the module's parameters or their float32 masters, whole or what this rank
  // has of them, under the parameters' names.
  const std::vector<optim::Parameter>& parameters() const { return parameters_; }

  // The tensor to call backward() on for this loss.
  at::Tensor scaled(const at::Tensor& loss) const;
  // Bounds the gradients that finish_backward() left: their common norm, or with `by` "value" each
  // number. Gradients that overflowed stay. 0: no bound.
  void clip(parallel::ParameterStore& store, double bound, const std::string& by);
  // The store's step, which is left out where a gradient has overflowed.
  void step(parallel::ParameterStore& store);

  // Steps that an overflow has cost so far.
  int64_t skipped() const { return skipped_; }
  // Nothing without loss scaling.
  std::optional<double> loss_scale() const;
  // The masters among parameters(), under the names of their parameters.
  optim::NamedTensors masters() const;

  // The next step depends on it, gradients and parameters() alone. Tensors may share memory with
  // this object. Entries with boxes are parts of the states of whole parameters.
  optim::NamedTensors state() const;
  // Takes what state() gave in a checkpoint, where it is behind `prefix`: the parts it needs of the
  // states of whole parameters, whoever had them. parameters() are there already. Throws
  // Error(usage) for states of another optimizer.
  void load(const checkpoint::CheckpointReader& saved, const std::string& prefix);

 private:
  // Gradients to where the optimizer finds them, in its units; once a step.
  void take_gradients();
  void update();
  optim::NamedTensors saved_states(const checkpoint::CheckpointReader& saved,
                                   const std::string& prefix) const;

  std::vector<optim::Parameter> parameters_;  // the optimizer's
  bool taken_ = false;
  std::optional<optim::MasterWeights> masters_;
  std::optional<optim::GradScaler> scaler_;
  std::unique_ptr<optim::FlatOptimizer> optimizer_;
  int64_t skipped_ = 0;
};

}  // namespace troika::train
