// Causal attention by heads over a context axis (DeepSpeed Ulysses: Jacobs et al. 2023, arXiv
// 2309.14509).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troika/comm/group.h"
#include "troika/nn/attention.h"

namespace troika::parallel {

// Returns causal attention of this rank's queries to the keys and values of all ranks' parts of the
// samples (nn::TokenPart), [batch, own tokens, heads * size]. An all-to-all gives each rank all
// tokens of its share of the heads, and a second one brings the result back; so does the backward
// pass. Arguments are those of nn::causal_attention() for the own tokens. The heads must be a
// multiple of the ranks; heads of keys and values a multiple or a divisor of the ranks: otherwise
// throws Error(usage) naming both numbers. Collective, in the backward pass too; blocks.
at::Tensor head_attention(const nn::AttentionHeads& own, double dropout, nn::Attention attention,
                          const std::optional<nn::EqualPart>& part, const comm::Group& axis);

// Throws the errors of head_attention() for these numbers of heads; `what` names the module.
void require_divisible_heads(const std::string& what, int64_t heads, int64_t kv_heads, int ranks);

}  // namespace troika::parallel
