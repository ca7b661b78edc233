// Tensor parallelism: the ranks of an axis each hold a part of the model's layers, and compute each
// layer together (Shoeybi et al. 2019, arXiv 1909.08053).
//
//   auto model = nn::make_model(options);
//   parallel::TensorParallel tensor(*model, axis, parallel::split_table(options));
//   auto optimizer = optim::make_optimizer(model->parameters(), {.name = "adamw"});
//   for (...) {
//     loss(model->forward(inputs)).backward();  // the same inputs on all ranks of the axis
//     tensor.finish_backward();
//     optimizer->step();
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/group.h"
#include "troika/compat/deferred_init.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/model.h"
#include "troika/optim/flat_optimizer.h"
#include "troika/parallel/tensor/axis_hooks.h"
#include "troika/parallel/tensor/parameter_cuts.h"
#include "troika/parallel/tensor/split_table.h"
#include "troika/state/state_dict.h"

namespace troika {
class Trace;
}

namespace troika::parallel {

struct TensorOptions {
  // Sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198): between layers, each rank has
  // 1/t of the tokens, so that norms, residual sums and dropout take 1/t of the time and memory.
  // Costs the same communication. For models whose first block embeds tokens; the number of tokens
  // must be a multiple of t.
  bool sequence = false;
  // The names of the tensors of the model that this rank holds, the same on all ranks of the axis;
  // none: it holds all. Other parameters that are cut get the shapes of shards, but no values.
  std::optional<std::set<std::string>> held = {};
  // Makes the values of a model that has none yet, tensor by tensor; each rank keeps only its
  // shards of what it holds, and all tensors in `held`. All ranks must have the same state of the
  // generator. Must outlive the constructor. Null: the model has values.
  compat::DeferredInit* values = nullptr;
  // Gets the sums of backward passes (docs/timeline.md), unless it is null; must outlive the object
  // and the graphs of its passes.
  Trace* trace = nullptr;
};

// Throws what TensorParallel's constructor throws before any communication.
void require_splittable(const nn::Model& model, const SplitTable& table, int ranks,
                        const TensorOptions& options = {});

// Throws Error(usage) if the number of tokens of these inputs, [samples, tokens, ...], is not a
// multiple of `ranks`, as sequence parallelism needs it.
void require_divisible_tokens(const at::Tensor& inputs, int ranks);

// Keeps a model cut over the ranks of a group during its lifetime. The model's code is not aware of
// it: its layers get functions that communicate (nn/hooked.h).
// Outputs of the model, its loss, and the gradient of its input are the same on all ranks, and
// equal those of one process up to the order of sums. With nn::KeyedDraws, dropout masks are those
// of one process.
//
// All ranks of the group must make the same calls, and the same forward and backward passes. Passes
// block until all ranks have called them, at most for the group's timeout.
class TensorParallel {
 public:
  // Cuts all parameters: parameter objects stay, and get this rank's shard of the values of rank 0.
  // With TensorOptions::values, it takes the memory of the shards and of one parameter.
  // Make optimizers afterwards. Collective, but throws Error(usage) before any communication for a
  // module without a rule or of a wrong kind, naming its block, and for a dimension that cannot be
  // cut among the ranks, naming both numbers. The model must outlive this object, and must not have
  // a wrapper of kind tensor.
  TensorParallel(nn::Model& model, comm::Group group, const SplitTable& table,
                 const TensorOptions& options = {});
  // Removes the functions from the layers. Parameters stay cut; see make_whole().
  ~TensorParallel() = default;
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  // Completes gradients that ranks have only summands of: those of heads that several ranks hold,
  // those of adapters' matrices whose other matrix is cut and, with sequence parallelism, those of
  // norms and of biases added after a sum. Gradients of parameters that all ranks hold become the
  // same bits on all ranks, and all ranks get the running statistics of all channels of cut batch
  // norms. Call it once after the last backward pass of a step and, with replicas,
  // after their average. Collective.
  void finish_backward();
  // The same for the gradients of these tensors, under the parameters' names: parameters of the
  // model, or flat ranges of their elements that are the same on all ranks of the axis.
  void finish_backward(const std::vector<optim::Parameter>& parameters);

  // Returns the sum of squares of all elements of the whole model's gradients, after
  // finish_backward(). Counts elements that several ranks hold once. The same bits on all ranks.
  // Collective.
  double gradient_squares() const;

  // Whether the shards of a parameter differ in size between ranks.
  bool has_uneven_shards(const std::string& name) const;
  // Whether this rank's copy of a parameter's shard counts in sums over the model: one of the ranks
  // that hold a shard counts it.
  bool counts(const std::string& name) const;
  // Returns how a parameter is cut; null: it is whole. Valid as long as this object.
  const ParameterCut* cut_of(const std::string& name) const;
  // Replaces sums over shards of these parameters, [parameters, ...], by sums over whole
  // parameters. Collective.
  void complete_sums(const std::vector<optim::Parameter>& parameters, const at::Tensor& sums) const;

  // Returns the cut of each parameter and the parameter, in the order of nn::named_parameters().
  const std::vector<std::pair<ParameterCut, at::Tensor>>& parameters() const { return parameters_; }
  // Returns the shards of all parameters, which share memory with them, with their boxes in the
  // whole parameters. A parameter whose shard has several ranges has an entry for each.
  state::StateDict shards() const;

  // Returns the whole of a tensor that is cut like parameter `name`: the parameter, its gradient or
  // a state of its optimizer. The same bits on all ranks. Collective.
  at::Tensor gather(const std::string& name, const at::Tensor& shard) const;

  // Makes all parameters whole again, with memory of their own, and removes the functions. Only the
  // destructor may be called afterwards. Collective.
  void make_whole();

 private:
  // Cuts one parameter. `shard` is this rank's shard of its values; undefined: they are in the
  // parameter.
  void cut_parameter(at::Tensor parameter, const ParameterCut& cut, const at::Tensor& shard);
  // Makes the values of the model's tensors. Returns the shards of cut parameters by name.
  std::map<std::string, at::Tensor> make_shards(const std::vector<ParameterCut>& cuts) const;
  bool is_held(const std::string& name) const;
  void add_wrapper(const std::vector<RuledModule>& modules);
  void complete_statistics() const;
  // The ranks that hold the same shard of a parameter which this number of ranks holds.
  const comm::Group& group_of_copies(int copies) const;
  const ParameterCut& find_cut(const std::string& name) const;

  nn::Model& model_;
  const comm::Group group_;
  TensorOptions options_;
  std::vector<std::pair<ParameterCut, at::Tensor>> parameters_;
  std::map<std::string, size_t> indices_;  // in parameters_
  std::map<int, comm::Group> copies_;      // by their number, if it is neither 1 nor all
  std::optional<AxisHooks> hooks_;
  nn::WrapperGuard wrapper_;
};

}  // namespace troika::parallel
