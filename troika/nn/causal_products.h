// Causal attention by matrix products, on CPUs.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

// Returns causal attention of `qkv`, [batch, length, 3 * heads * size], the output of one linear
// layer; the result is [batch, length, heads * size]. Skips most of the masked products: splits
// positions into blocks, and multiplies each block only with the positions up to its last one.
// float32 and bfloat16 on the CPU. Can be differentiated only once.
at::Tensor causal_products(const at::Tensor& qkv, int64_t heads);
bool takes_causal_products(const at::Tensor& qkv);

}  // namespace troika::nn
