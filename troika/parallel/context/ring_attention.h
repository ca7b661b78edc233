// Causal attention over a context axis whose ranks send keys and values round a ring (Liu et al.
// 2023, arXiv 2310.01889; causal balance as in Megatron-LM).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "troika/comm/group.h"
#include "troika/nn/attention.h"

namespace troika::parallel {

// Returns causal attention of this rank's queries to the keys and values of all ranks' parts of the
// samples (nn::TokenPart), [batch, own tokens, heads * size]. Computes with the keys and values of
// one rank while those of the next are on their way, and merges the results by their largest scores
// and sums (online softmax: Milakov and Gimelshein 2018, arXiv 1805.02867). The backward pass sends
// keys and values round again, recomputes the weights, and sends the gradients of keys and values
// with them, until they are home; so it keeps no weights.
//
// Per rank and pass, with c ranks, a sample of s tokens and h elements of all heads of keys: a
// forward pass sends 2 (c - 1) / c b s h elements, and a backward pass 2 (c - 1) / c b s h elements
// and 2 b s h elements of gradients, which are in float32 at least.
//
// A pass computes blocks of rows of at most `most_scores` scores, of all heads and samples
// together, or of one row; a backward pass holds up to five tensors of so many elements. The
// default is 128 MiB for a tensor in float32.
//
// `own` has heads of this rank's tokens as nn::causal_attention() takes them, and is not changed. A
// `dropout` above 0 needs keyed draws (nn::KeyedDraws), otherwise throws Error(usage). With a part,
// they are that part of the heads of a whole layer. Can be differentiated once. Collective, in the
// backward pass too; blocks.
at::Tensor ring_attention(const nn::AttentionHeads& own, double dropout,
                          const std::optional<nn::EqualPart>& part, const comm::Group& axis,
                          int64_t most_scores = int64_t{1} << 25);

}  // namespace troika::parallel
