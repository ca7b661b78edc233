// Causal attention by matrix products, on CPUs.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

// `qkv` is [batch, length, 3 * heads * size], as one product makes queries, keys and values of all
// heads; the result is [batch, length, heads * size]. The products leave out most of what positions
// do not see: positions are taken in blocks, and each block is multiplied with those up to its last
// one. float32 and bfloat16 on the CPU. May be differentiated once.
at::Tensor causal_products(const at::Tensor& qkv, int64_t heads);
bool takes_causal_products(const at::Tensor& qkv);

}  // namespace troika::nn
