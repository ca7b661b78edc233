// Who owns which parameters, and how a step changes them.
#pragma once

#include <functional>
#include <vector>

#include "troika/layout/box.h"
#include "troika/optim/flat_optimizer.h"
#include "troika/parallel/group_reducer.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// The module's own, under their names.
std::vector<optim::Parameter> trained_parameters(const torch::nn::Module& module);

// All ranks make the same calls, from one thread each, outside of a pass. The module must outlive
// the object.
class ParameterStore {
 public:
  ParameterStore() = default;
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // The tensors that this rank's optimizer steps: the module's trained parameters, or the pieces of
  // them that this rank owns, with the boxes that they are of their parameters.
  virtual std::vector<optim::Parameter> parameters() const = 0;
  // Whether these are pieces.
  bool has_pieces() const;
  // Whether only ranks together have the parameters between passes, each what parameters() gives.
  virtual bool shares_parameters() const { return false; }
  // After finish_backward(): tensors that hold the gradients of parameters() between them.
  virtual std::vector<at::Tensor> gradients() const;
  // Over the ranks that own the model between them. Lives as long as this object.
  virtual const GroupReducer& reducer() const { return GroupReducer::of_whole_model(); }

  // Calls `update`, which steps the optimizer, and does what follows it. May block.
  virtual void step_by(const std::function<void()>& update) = 0;
  // The same with an optimizer of room optim, or of LibTorch.
  template <typename Optimizer>
  void step(Optimizer& optimizer) {
    step_by([&] { optimizer.step(); });
  }
  // All-gathers into the module on every rank what ranks' parameters() hold, after these were
  // written to: all of it after agree(), else the next pass or agree() gets the rest where ranks
  // share parameters. Blocks.
  virtual void spread_parameters() {}
  // Makes parameters and buffers the same bits on all ranks: for validation, checkpoints of the
  // module, and the end of training. Nothing happens where they are the same. Blocks.
  virtual void agree() = 0;

  // Scales the gradients, between finish_backward() and step(), so that their norm (2-norm over all
  // elements of the model, made in float64) is at most `max_norm`. Returns the norm before; if it
  // is not finite, gradients stay. Blocks.
  double clip_grad_norm(double max_norm);
};

}  // namespace troika::parallel
