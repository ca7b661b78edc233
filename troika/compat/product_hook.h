// Intercepts matrix products and convolutions: below autograd, which records them as usual, and
// below autocast, which has already chosen their dtypes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace troika::compat {

class ProductHook {
 public:
  virtual ~ProductHook() = default;
  // Called for each mm, addmm and convolution; returns its result, which `work` computes. A
  // different tensor returned instead must not be part of a graph; use its alias().
  virtual at::Tensor call(const std::function<at::Tensor()>& work) = 0;
};

// While this guard exists, products of this thread go through `hook`, which must outlive it,
// including those of backward passes. Guards nest: only the innermost hook is called.
class [[nodiscard]] ProductGuard {
 public:
  explicit ProductGuard(ProductHook& hook);
  ~ProductGuard();
  ProductGuard(const ProductGuard&) = delete;
  ProductGuard& operator=(const ProductGuard&) = delete;
};

// Returns a new tensor over the same memory, outside of any graph. The two share `_version()`,
// which counts in-place changes to either.
at::Tensor alias(const at::Tensor& tensor);

}  // namespace troika::compat
