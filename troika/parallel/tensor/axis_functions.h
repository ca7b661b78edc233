// Differentiable collectives over a tensor axis: what Megatron-LM calls f, g and their variants for
// sequence parallelism (Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022,
// arXiv 2205.05198, section 4.2.2).
//
// All are collective in the forward or in the backward pass, on the thread of that pass, and block,
// except where a comment says otherwise. In a lane (lanes.h), the other lane computes while a
// forward pass waits for its collective. Ranks must run the same operators in the same order. Sums
// are the same bits on all ranks.
//
// `trace`, unless it is null, gets the collectives of passes (docs/timeline.md): "forward sum", and
// "gradient sum" where a backward pass starts it. It must outlive the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/hooked.h"

namespace troika {
class Trace;
}

namespace troika::parallel {

// The dimension of tokens in activations, [batch, tokens, width].
inline constexpr int64_t kTokens = 1;

// Returns a contiguous view of a contiguous tensor or of images or weights in channels-last order.
at::Tensor in_memory_order(const at::Tensor& x);

// f: returns `x`, the same on all ranks. Its gradient is the sum of the ranks' gradients. The
// backward pass starts the sum, which the thread of the group computes, and waits for it in a node
// of its own; so does that of gather_tokens(). `trace` gets the computation beside the sum, too.
at::Tensor copy_to_axis(const at::Tensor& x, const comm::Group& axis, Trace* trace = nullptr);
// g: returns the sum of the ranks' tensors. Its gradient, the same on all ranks, passes unchanged.
at::Tensor sum_over_axis(const at::Tensor& x, const comm::Group& axis, Trace* trace = nullptr);

// Concatenates the ranks' tensors along the last dimension, in which rank r has widths[r] elements.
// The gradient, the same on all ranks, is cut again.
at::Tensor gather_columns(const at::Tensor& x, const std::vector<int64_t>& widths,
                          const comm::Group& axis, Trace* trace = nullptr);

// Returns this rank's part of `x`, the same on all ranks, cut into equal parts along kTokens. The
// gradient is that of all parts.
at::Tensor own_tokens(const at::Tensor& x, const comm::Group& axis);
// Concatenates the ranks' tokens. The gradient is the sum of the ranks' gradients, cut again.
at::Tensor gather_tokens(const at::Tensor& x, const comm::Group& axis, Trace* trace = nullptr);
// Where `x` was returned by copy_to_axis() or gather_tokens() and has a graph: how layers of this
// input compute the gradients of their weights between the start of the sum that is the gradient of
// `x` and the wait for it. With gather_tokens(), the layers keep nothing: the backward pass gathers
// the tokens again, while the gradient of the input is computed.
std::optional<nn::LateWeights> weights_beside_sum(const at::Tensor& x);
// Returns this rank's tokens of the sum of the ranks' tensors. The gradient is that of all tokens.
at::Tensor sum_own_tokens(const at::Tensor& x, const comm::Group& axis, Trace* trace = nullptr);

}  // namespace troika::parallel
