// Recomputation of some blocks of a model in the backward pass:
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

// The model recomputes by the plan while the result lives; an empty plan recomputes nothing.
// Gradients have the same bits as without, and buffers are updated once. See checkpoint.h. The
// model must outlive the result, and, where no shared_ptr owns it, the graphs of its passes. Throws
// Error(usage) where the model recomputes by another plan, CheckError for a plan whose blocks the
// model does not have or that is out of order, and, in passes of a part of the blocks, for one that
// recomputes some of them together with others.
[[nodiscard]] WrapperGuard recompute(Model& model, RecomputePlan plan);

}  // namespace troika::nn
