// Ownership of parameters, and optimizer steps on them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/layout/box.h"
#include "troika/optim/flat_optimizer.h"
#include "troika/parallel/group_reducer.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

struct ParameterCut;

// Returns the module's trained parameters under their names.
std::vector<optim::Parameter> trained_parameters(const torch::nn::Module& module);

// All ranks make the same calls, from one thread each, never during a forward or backward pass. The
// module must outlive the object.
class ParameterStore {
 public:
  ParameterStore() = default;
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // Returns the tensors that this rank's optimizer steps: the module's trained parameters, or the
  // shards of them that this rank owns, each with the box it covers in its parameter.
  virtual std::vector<optim::Parameter> parameters() const = 0;
  // Returns the tensors of parameters(), for an optimizer of LibTorch.
  std::vector<at::Tensor> tensors() const;
  // Whether parameters() may be empty on a rank: if other ranks hold all of the model's parameters.
  virtual bool may_be_empty() const { return false; }
  // How a parameter of the module is cut over a tensor axis, trained or not; null: it is whole.
  // parameters() has its shard. Valid as long as this object.
  virtual const ParameterCut* cut_of(const std::string& /*name*/) const { return nullptr; }
  // Whether parameters() returns shards.
  bool has_shards() const;
  // Whether, between passes, each rank holds only its own shards of the parameters.
  virtual bool shards_parameters() const { return false; }
  // Returns tensors that together hold the gradients of parameters(). Valid after
  // finish_backward().
  virtual std::vector<at::Tensor> gradients() const;
  // Whether this rank's copy of a parameter counts in sums over the model: not if another rank owns
  // the parameter.
  virtual bool counts(const std::string& /*name*/) const { return true; }
  // Returns the reducer over the ranks that together own the model. It lives as long as this
  // object.
  virtual const GroupReducer& reducer() const { return GroupReducer::of_whole_model(); }

  // Returns the reducer over the ranks that share the elements of this rank's parameters(): for
  // sums over whole parameters. It lives as long as this object.
  virtual const GroupReducer& shards_reducer() const { return reducer(); }

  // Replaces sums over this rank's part of each of parameters(), float64 [parameters, n], by sums
  // over the whole parameters. Called by all ranks; blocks.
  virtual void complete_sums(const at::Tensor& sums) const {
    shards_reducer().sum(sums, "norms of parameters");
  }

  // Returns the optimizer that step() needs in place of one over parameters(), for a store whose
  // parameters are not stepped in this process; null: the store needs none. Called once.
  virtual std::unique_ptr<optim::FlatOptimizer> own_optimizer() { return nullptr; }
  // Calls `update`, which steps the optimizer, and then updates the module where necessary. May
  // block.
  virtual void step_by(const std::function<void()>& update) = 0;
  // The same with an optimizer of troika::optim or of LibTorch.
  template <typename Optimizer>
  void step(Optimizer& optimizer) {
    step_by([&] { optimizer.step(); });
  }
  // Updates the module after parameters() were written to: all-gathers the ranks' shards. If
  // shards_parameters(), parameters that are not present now are gathered by the next forward pass
  // or by synchronize_replicas(). Blocks.
  virtual void spread_parameters() {}
  // Makes all parameters of the module present for the passes of one step. Needed only if
  // shards_parameters() and the parameters are not gathered by forward passes. Blocks.
  virtual void gather_parameters() {}
  // Gives the module the values that this rank trains, before a forward pass of training. Needed
  // only after synchronize_replicas(), make_whole() or fetch_states() of a store that then shows
  // others. Does not communicate.
  virtual void begin_training() {}
  // Makes parameters and buffers the same bits on all ranks, for validation, checkpoints of the
  // module and the end of training. Does nothing where they are equal already. Blocks.
  virtual void synchronize_replicas() = 0;
  // The same, and gives the module on each rank all parameters, whole, with their current values.
  // Later steps need not update those that other ranks own. Blocks.
  virtual void make_whole() { synchronize_replicas(); }
  // Makes parameters, and states of own_optimizer(), those after the last step of all ranks, for a
  // checkpoint. Called by all ranks. Blocks.
  virtual void fetch_states() {}
  // Returns numbers about the steps since the last call, for a row of the log, the same on all
  // ranks; empty: there are none. Called by all ranks. Blocks.
  virtual std::vector<std::pair<std::string, double>> take_statistics() { return {}; }

  // Scales the gradients so that their 2-norm over all elements of the model, computed in float64,
  // is at most `max_norm`. Call it between finish_backward() and step(). Returns the norm before
  // scaling; gradients stay unchanged if it is not finite. Blocks.
  double clip_grad_norm(double max_norm);
  // The same with the norm over the elements of this rank's parameters() and of the ranks that
  // share these parameters: in a pipeline, those of its stages.
  double clip_stage_grad_norm(double max_norm);

 protected:
  // Returns the sum of the squares of the gradients of this rank's parameters() and of the ranks
  // that share these parameters. Blocks.
  virtual double squares_of_stage_gradients() const;
  // Returns the sum of the squares of the whole model's gradients. Blocks.
  virtual double squares_of_gradients() const;
};

}  // namespace troika::parallel
