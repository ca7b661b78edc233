// The optimizer of a run, with master weights and loss scaling as the precision requires.
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
#include "troika/train/engine/cut_tensors.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::checkpoint {
class CheckpointReader;
}

namespace troika::train {

// Steps parameters through float32 masters if they are in half precision, and through masters on
// the host if they are on a GPU and the optimizer does not step there or its states are offloaded.
// Scales the loss if gradients are in float16.
class Optimization {
 public:
  // If ranks hold different gradients, `any_rank` reports an overflow on any rank to all. Throws
  // Error(usage) for an empty list, unless it `may_be_empty`.
  Optimization(const nn::NumericPrecision& precision, std::vector<optim::Parameter> parameters,
               const OptimizerRecipe& recipe, optim::GradScaler::FlagReduction any_rank = {},
               bool may_be_empty = false);
  // Steps the parameters this rank owns, with the store's own optimizer if it has one. `cuts` are
  // the store's. `store` must outlive this object. Throws Error(usage) if the store shards
  // parameters and the recipe's custom optimizer needs whole ones.
  Optimization(const nn::NumericPrecision& precision, parallel::ParameterStore& store,
               const OptimizerRecipe& recipe, CutTensors cuts = {});

  double learning_rate() const { return optimizer_->learning_rate(); }
  void set_learning_rate(double rate) { optimizer_->set_learning_rate(rate); }

  // The tensors that the optimizer steps: the module's parameters or their float32 masters, whole
  // or this rank's shards, under the parameters' names.
  const std::vector<optim::Parameter>& parameters() const { return parameters_; }

  // Returns the tensor on which to call backward() for this loss.
  at::Tensor scaled(const at::Tensor& loss) const;
  // Clips the gradients that finish_backward() left: by their total norm, or with `by` "stage_norm"
  // by that of each stage of a pipeline. With "value", the next step() clips each element. Leaves
  // overflowed gradients as they are. 0 means no bound.
  void clip(parallel::ParameterStore& store, double bound, const std::string& by);
  // Makes the store's optimizer step, unless a gradient has overflowed.
  void step(parallel::ParameterStore& store);

  // The number of steps skipped because of overflows so far.
  int64_t skipped() const { return skipped_; }
  // Empty without loss scaling.
  std::optional<double> loss_scale() const;
  // The masters among parameters(), under the parameters' names.
  optim::NamedTensors masters() const;
  const CutTensors& cuts() const { return cuts_; }

  // The state on which the next step depends, beside gradients and parameters(). Tensors may share
  // memory with this object. Entries with boxes are parts of the states of whole parameters.
  optim::NamedTensors state() const;
  // Loads from a checkpoint what state() returned, stored under names that begin with `prefix`.
  // Reads the parts this rank needs, whichever ranks saved them. parameters() must already be
  // loaded. Throws Error(usage) for states of another optimizer.
  void load(const checkpoint::CheckpointReader& saved, const std::string& prefix);

 private:
  // Steps the parameters that have gradients.
  void update();
  optim::NamedTensors saved_states(const checkpoint::CheckpointReader& saved,
                                   const std::string& prefix) const;

  std::vector<optim::Parameter> parameters_;  // tensors that the optimizer steps
  double value_bound_ = 0;                    // of the next step; 0: none
  std::optional<optim::MasterWeights> masters_;
  std::optional<optim::GradScaler> scaler_;
  std::unique_ptr<optim::FlatOptimizer> optimizer_;
  int64_t skipped_ = 0;
  CutTensors cuts_;
};

}  // namespace troika::train
