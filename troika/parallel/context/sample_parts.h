// Functions on samples whose tokens are cut over a context axis as nn::TokenPart says.
//
// The tokens are dimension kTokens. Functions that communicate are collective, and block; ranks
// must call them in the same order, in the forward and in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/comm/group.h"
#include "troika/nn/token_part.h"

namespace troika::parallel {

// Returns this rank's part of the tokens of `x`, [samples, tokens, ...]; 2 part.count must divide
// their number.
at::Tensor own_part(const at::Tensor& x, const nn::TokenPart& part);

// Reorder tokens, which are dimension 0: between [parts, tokens of a part, ...] and [tokens, ...]
// in the order of the sample. Return new tensors.
at::Tensor in_sample_order(const at::Tensor& parts);
at::Tensor in_parts(const at::Tensor& tokens, int64_t parts);

// Return the same on all ranks: the whole samples of which each rank has its part, and the sum of
// the ranks' tensors. A backward pass gives each rank its own summand of gradients of parameters,
// and all ranks begin it with the same gradient. The gradients of these functions have the factor
// axis.size(), so that the mean over the axis, as DataParallel makes it, is the sum of the
// summands.
at::Tensor gather_parts(const at::Tensor& part, const comm::Group& axis);
at::Tensor sum_parts(const at::Tensor& x, const comm::Group& axis);

}  // namespace troika::parallel
