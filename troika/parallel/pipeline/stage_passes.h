// The forward and backward passes of one stage on this rank.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"
#include "troika/parallel/pipeline/stages.h"

namespace troika::parallel {

// Runs a stage's blocks on micro-batches, and keeps the graph of each from its forward to its
// backward pass. Not thread-safe.
class StagePasses {
 public:
  // Both must outlive this object.
  StagePasses(const nn::Model& model, const StageOfModel& stage) : model_(model), stage_(stage) {}

  const StageOfModel& stage() const { return stage_; }

  // Runs the blocks. `inputs` are those of StageOfModel::takes. Returns the tensors of
  // StageOfModel::gives without their graph or, for the stage with the model's last block, the
  // model's outputs (or `loss`) with it. In gradient mode, keeps the graph.
  nn::Tensors forward(int micro_batch, nn::Tensors inputs,
                      std::shared_ptr<const nn::OutputLoss> loss, bool is_last_stage);
  // Makes `root`, computed from the outputs of forward(), the tensor from which backward() starts.
  void start_from(int micro_batch, const at::Tensor& root);
  // Adds to the gradients of the stage's parameters, and ends the micro-batch. `gradients` are
  // those of the outputs, in the order of StageOfModel::gives; undefined counts as zero. Empty
  // after start_from(). Returns the gradients of the inputs, in the order of StageOfModel::takes:
  // undefined for inputs that have none, zeros for those that affected nothing.
  nn::Tensors backward(int micro_batch, const nn::Tensors& gradients);
  // Returns the dtypes of the tensors that forward() gave, whose gradients backward() takes.
  std::vector<bool> differentiable_outputs(int micro_batch) const;

  // The number of micro-batches between their forward and backward passes.
  size_t active() const { return active_.size(); }
  // Ends all micro-batches.
  void clear() { active_.clear(); }

 private:
  struct Active {
    nn::Tensors inputs;  // leaves of the graph, where the input has a gradient
    nn::Tensors roots;
  };

  const nn::Model& model_;
  const StageOfModel& stage_;
  std::map<int, Active> active_;  // by micro-batch
};

}  // namespace troika::parallel
