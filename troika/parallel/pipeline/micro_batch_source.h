// The micro-batches of one step of a pipeline.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "troika/nn/keyed_draws.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"

namespace troika::parallel {

// Supplies a pipeline's stages with micro-batches, numbered from 0. All ranks of a pipeline replica
// must supply the same micro-batches. The functions are called on the thread of Pipeline::run() or
// evaluate() or, with PipelineOptions::tensor_overlap, on a second one, never on both at the same
// time. They may be called several times for one micro-batch: keys() before each forward and
// backward pass of each stage of this rank, the others in forward passes.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;

  // Returns the model's inputs, in the order of Model::input_names(), on the device of the blocks.
  virtual nn::Tensors inputs(int micro_batch) = 0;
  // Returns the loss that the model's last block computes in place of outputs; null: loss()
  // computes the loss. Called only if the last stage has the last block and this block can compute
  // a loss.
  virtual std::shared_ptr<const nn::OutputLoss> output_loss(int /*micro_batch*/) { return nullptr; }
  // Returns the loss, one element. `outputs` are the model's, or its output loss. Called on the
  // last stage.
  virtual at::Tensor loss(int micro_batch, nn::Tensors outputs) = 0;
  // Returns the tensor on which backward() is called: the loss times the weight of the micro-batch
  // in the step, times the loss scale if any.
  virtual at::Tensor root(int micro_batch, const at::Tensor& loss) = 0;
  // Returns the keys of dropout masks; null: masks come from LibTorch's default generator.
  virtual std::shared_ptr<const nn::SampleKeys> keys(int /*micro_batch*/) { return nullptr; }
};

}  // namespace troika::parallel
