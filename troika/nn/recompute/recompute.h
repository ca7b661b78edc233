// Recomputation of chosen blocks of a model in the backward pass:
//
//   const auto recomputed = nn::recompute(*model, nn::recompute_plan("sqrt", blocks));
//   loss(model->forward(inputs)).backward();
#pragma once

#include "troika/layout/recompute.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/model.h"

namespace troika::nn {

using layout::recompute_plan;
using layout::RecomputedSegment;
using layout::RecomputePlan;

// Makes the model recompute by the plan during the result's lifetime; an empty plan recomputes
// nothing. Gradients have the same bits as without recomputation, and buffers are updated once
// (checkpoint.h). The model must outlive the result. If no shared_ptr owns the model, it must also
// outlive the graphs of its forward passes. Throws Error(usage) if the model already recomputes,
// and CheckError if the plan is out of order or names blocks that the model does not have. A
// forward pass over a part of the blocks throws CheckError if the plan recomputes some of these
// blocks together with others.
[[nodiscard]] WrapperGuard recompute(Model& model, RecomputePlan plan);

}  // namespace troika::nn
