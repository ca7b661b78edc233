// What blocks of a model cost: the input of plan_for_budget().
#pragma once

#include <memory>
#include <vector>

#include "troika/layout/recompute.h"
#include "troika/nn/model.h"

namespace troika::nn {

using layout::BlockCost;
using layout::plan_for_budget;

// By running each block of the model, after a first time, forward and backward, on what blocks
// before it give; in seconds, the least of three. Random generators and buffers are left as
// they were. `inputs` and `loss` are those of Model::forward.
std::vector<BlockCost> measure_blocks(const Model& model, const Tensors& inputs,
                                      const std::shared_ptr<const OutputLoss>& loss = nullptr);

// Estimates costs in FLOPs, from the products of each block and the bytes that it saves. Unlike
// measure_blocks() it works on tensors without memory (compat::FakeTensorGuard), too.
std::vector<BlockCost> estimate_blocks(const Model& model, const Tensors& inputs,
                                       const std::shared_ptr<const OutputLoss>& loss = nullptr);

}  // namespace troika::nn
