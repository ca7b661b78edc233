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

namespace troika::layout {
struct Plan;
}

namespace troika::train {

struct TrainOptions;

struct Placement {
  nn::NumericPrecision precision;
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  nn::WeightLayout weight_layout = nn::WeightLayout::in_out;
  at::Device device = at::kCPU;

  // Follows trainer.accelerator, precision, memory_format and weight_layout. A rank uses the GPU
  // whose number is its local rank. Throws Error(usage) if the device does not exist, if a node has
  // fewer GPUs than ranks, or if LibTorch cannot compute in this type there.
  static Placement of(const TrainOptions& options, const comm::Group& group);

  // Throws Error(usage) unless the plan can train on this device. On GPUs, each rank must have one
  // replica and average its gradients in every step. `accelerator` is trainer.accelerator.
  void require_trainable(const layout::Plan& plan, const std::string& accelerator) const;

  // Moves and converts parameters and buffers; must precede the making of optimizers and exchanges.
  void place(torch::nn::Module& module) const;
  // Moves a batch to the device. Floating-point tensors get the type of parameters; 4-d tensors get
  // the memory format.
  data::Batch place(data::Batch batch) const;
  // Whether place() would return the batch unchanged.
  bool is_placed(const data::Batch& batch) const;

 private:
  bool is_placed(const at::Tensor& tensor) const;
};

}  // namespace troika::train
