// The one place that knows how LibTorch versions differ (1.13 to 2.x). Nothing else in the project
// tests a LibTorch version or names a c10d or autograd internal that moved between them.
//
// Gate on MAJOR and MINOR alone: Debian's 1.13.1 reports itself as 1.13.0.
#pragma once

#include <torch/torch.h>
#include <torch/version.h>

#include <cmath>
#include <limits>
#include <string>

#define TROIKA_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace troika::compat {

// LibTorch this was compiled against, e.g. "1.13.0".
inline std::string torch_version() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
         std::to_string(TORCH_VERSION_PATCH);
}

// softmax(q k^T / sqrt(size)) v, where a position sees itself and those before it. Tensors are
// [batch, heads, length, size]; `dropout` applies to the softmax. One fused kernel from 2.0 on; the
// [length, length] weights of all heads are in memory before.
inline at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   double dropout) {
#if TROIKA_TORCH_VERSION >= 200
  return at::scaled_dot_product_attention(q, k, v, {}, dropout, /*is_causal=*/true);
#else
  const int64_t length = q.size(2);
  const auto per_head = [](const at::Tensor& x) { return x.reshape({-1, x.size(2), x.size(3)}); };
  const double never = -std::numeric_limits<double>::infinity();
  const at::Tensor future = at::full({length, length}, never, q.options()).triu_(1);
  const at::Tensor scores = at::baddbmm(future, per_head(q), per_head(k).transpose(1, 2),
                                        /*beta=*/1, /*alpha=*/1 / std::sqrt(double(q.size(3))));
  const at::Tensor weights = at::dropout(at::softmax(scores, -1), dropout, dropout > 0);
  return at::bmm(weights, per_head(v)).view(q.sizes());
#endif
}

}  // namespace troika::compat
