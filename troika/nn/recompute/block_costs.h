// Costs of a model's blocks: the input of plan_for_budget().
#pragma once

#include <memory>
#include <vector>

#include "troika/layout/recompute.h"
#include "troika/nn/model.h"

namespace troika::nn {

using layout::BlockCost;
using layout::plan_for_budget;

// Runs each block forward and backward on the outputs of earlier blocks, once to warm up and then
// three times; returns the minimum in seconds. Restores random generators and buffers. `inputs` and
// `loss` are those of Model::forward.
std::vector<BlockCost> measure_blocks(const Model& model, const Tensors& inputs,
                                      const std::shared_ptr<const OutputLoss>& loss = nullptr);

// Estimates costs in FLOPs from the matrix products of each block and the bytes that it saves.
// Unlike measure_blocks() it also works on tensors without memory (compat::FakeTensorGuard).
std::vector<BlockCost> estimate_blocks(const Model& model, const Tensors& inputs,
                                       const std::shared_ptr<const OutputLoss>& loss = nullptr);

}  // namespace troika::nn
