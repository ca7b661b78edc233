// The forward and backward passes of one stage on this rank.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "troika/compat/split_backward.h"
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
  // undefined for inputs that have no gradient, zeros for inputs that did not affect the outputs.
  nn::Tensors backward(int micro_batch, const nn::Tensors& gradients);
  // The same in two parts (compat/split_backward.h): the gradients of the inputs, and later those
  // of the parameters.
  nn::Tensors backward_input(int micro_batch, const nn::Tensors& gradients);
  void backward_weight(int micro_batch);
  // Returns the gradients that backward_weight() starts from. Call it only between the two parts.
  nn::Tensors weight_part_gradients(int micro_batch) const;
  // Returns, for each tensor that forward() gave, whether backward() takes a gradient for it: it is
  // a floating-point tensor. Call it only between forward() and backward().
  std::vector<bool> differentiable_outputs(int micro_batch) const;

  // The number of micro-batches between the begin of their forward and the end of their backward
  // pass.
  size_t active() const { return active_.size() + halves_.size(); }

 private:
  // The outputs of a micro-batch that have gradients, and these gradients.
  struct Roots {
    nn::Tensors outputs, gradients;
  };
  struct Active {
    nn::Tensors inputs;  // leaves of the graph, where the input has a gradient
    nn::Tensors roots;
  };

  Active take(int micro_batch);
  static Roots roots_of(const Active& active, const nn::Tensors& gradients);
  bool has_gradient(size_t input, const at::Tensor& tensor) const;

  const nn::Model& model_;
  const StageOfModel& stage_;
  std::map<int, Active> active_;                 // by micro-batch
  std::map<int, compat::SplitBackward> halves_;  // after the first part, by micro-batch
};

}  // namespace troika::parallel
