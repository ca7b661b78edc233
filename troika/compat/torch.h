// The only place that knows the differences between LibTorch versions (1.13 to 2.x). Nothing else
// in the project tests a LibTorch version or names a c10d or autograd internal that changed between
// them.
//
// Test only MAJOR and MINOR: Debian's 1.13.1 reports itself as 1.13.0.
#pragma once

#include <torch/torch.h>
#include <torch/version.h>

#include <string>

#include "troika/base/error.h"

#define TROIKA_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace troika::compat {

// The LibTorch version this was compiled against, e.g. "1.13.0".
inline std::string torch_version() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
         std::to_string(TORCH_VERSION_PATCH);
}

// Whether this LibTorch has a fused attention kernel.
constexpr bool has_fused_attention() {
  return TROIKA_TORCH_VERSION >= 200;
}

// Returns softmax(q k^T / sqrt(size)) v with a causal mask. Tensors are [batch, heads, length,
// size]; `dropout` applies to the softmax. Requires has_fused_attention().
inline at::Tensor fused_causal_attention(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, double dropout) {
#if TROIKA_TORCH_VERSION >= 200
  return at::scaled_dot_product_attention(q, k, v, {}, dropout, /*is_causal=*/true);
#else
  (void)q, (void)k, (void)v, (void)dropout;
  TROIKA_CHECK(false, "this LibTorch has no fused attention");
#endif
}

}  // namespace troika::compat
