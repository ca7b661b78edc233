// The micro-batches of one step of a pipeline.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "troika/nn/keyed_draws.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"

namespace troika::parallel {

// Supplies a pipeline's stages with micro-batches, numbered from 0. All ranks of a pipeline replica
// supply the same ones. Functions are called on the thread of Pipeline::run() or evaluate(), those
// for one micro-batch once for each stage of this rank, and keys() for its backward passes, too.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;

  // Returns the model's inputs, in the order of Model::input_names(), on the device of the blocks.
  virtual nn::Tensors inputs(int micro_batch) = 0;
  // The loss that the model's last block computes in place of outputs; null: loss() computes it.
  // Asked only if the last stage has the last block, and the block can compute a loss.
  virtual std::shared_ptr<const nn::OutputLoss> output_loss(int /*micro_batch*/) { return nullptr; }
  // Returns the loss, one element. `outputs` are the model's, or its output loss. Called on the
  // last stage.
  virtual at::Tensor loss(int micro_batch, nn::Tensors outputs) = 0;
  // Returns the tensor on which to call backward(): the loss times the weight of the micro-batch in
  // the step, scaled as the precision needs it.
  virtual at::Tensor root(int micro_batch, const at::Tensor& loss) = 0;
  // The keys of dropout masks; null: masks come from LibTorch's default generator.
  virtual std::shared_ptr<const nn::SampleKeys> keys(int /*micro_batch*/) { return nullptr; }
};

}  // namespace troika::parallel
