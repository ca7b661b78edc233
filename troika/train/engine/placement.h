// Where a run computes, in what number type and order of memory.
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
  nn::Precision precision;
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  nn::WeightLayout weight_layout = nn::WeightLayout::in_out;
  at::Device device = at::kCPU;

  // Follows trainer.accelerator, precision, memory_format and weight_layout. A rank's GPU has its
  // number among the ranks of its node. Throws Error(usage) where there is no such device, or not
  // for each rank, or LibTorch cannot compute so.
  static Placement of(const TrainOptions& options, const comm::Group& group);

  // Throws Error(usage) unless the plan can train there: on GPUs those can whose ranks have one
  // replica each and average its gradients in every step. `accelerator` is trainer.accelerator.
  void require_trainable(const layout::Plan& plan, const std::string& accelerator) const;

  // Parameters and buffers; before optimizers and exchanges are made of them.
  void place(torch::nn::Module& module) const;
  // On the device. Tensors of floating point get the type of parameters, and those of four dims the
  // memory order of weights.
  data::Batch place(data::Batch batch) const;
};

}  // namespace troika::train
