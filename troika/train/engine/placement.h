// The device, number type and memory order in which a run computes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include <string>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/nn/precision.h"
#include "troika/nn/weight_layout.h"

namespace torch::nn {
class Module;
}

namespace troika::compat {
class DeferredInit;
}

namespace troika::train {

struct TrainOptions;

struct Placement {
  nn::NumericPrecision precision;
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  nn::WeightLayout weight_layout = nn::WeightLayout::in_out;
  at::Device device = at::kCPU;

  // Follows trainer.accelerator, precision, memory_format and weight_layout. A rank uses the GPU
  // whose number is its local rank. With replicas in threads (strategy dp), each replica has a GPU:
  // a rank of n replicas uses the n GPUs from n times its local rank on, and `device` is the first.
  // Throws Error(usage) if the device does not exist, if a node has
  // fewer GPUs than replicas, or if LibTorch cannot compute in this type there.
  static Placement of(const TrainOptions& options, const comm::Group& group);

  // Moves and converts parameters and buffers; must precede the making of optimizers and exchanges.
  void place(torch::nn::Module& module) const;
  // The same for a module without values yet: `values` will be placed, too. Tensors whose values
  // are to come have no memory on the device either, so that it holds no more than is made there.
  void place(torch::nn::Module& module, compat::DeferredInit& values) const;
  // Returns the placement of weights of which shards are cut: in the order of their dimensions.
  Placement in_order() const;
  // Moves a batch to the device. Floating-point tensors get the type of parameters; 4-d tensors get
  // the memory format. Copies to a device are in the order of its current stream. The host waits
  // for them unless the batch is staged (data::Batch::is_staged).
  data::Batch place(data::Batch batch) const;
  // Whether place() would return the batch unchanged.
  bool is_placed(const data::Batch& batch) const;

 private:
  bool is_placed(const at::Tensor& tensor) const;
};

}  // namespace troika::train
