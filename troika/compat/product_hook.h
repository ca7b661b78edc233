// The work of matrix products and convolutions, through a hand of ours: below autograd, which
// records them as ever, and below autocast, which has chosen their types.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace troika::compat {

class ProductHook {
 public:
  virtual ~ProductHook() = default;
  // Called for each mm, addmm and convolution; gives its result, which `work` makes. Another
  // tensor in its place must have no place in a graph: an alias() of it.
  virtual at::Tensor call(const std::function<at::Tensor()>& work) = 0;
};

// While it lives, products of this thread go through `hook`, which must outlive it, also those of
// backward passes. Guards nest: the innermost is asked.
class [[nodiscard]] ProductGuard {
 public:
  explicit ProductGuard(ProductHook& hook);
  ~ProductGuard();
  ProductGuard(const ProductGuard&) = delete;
  ProductGuard& operator=(const ProductGuard&) = delete;
};

// The same memory under a tensor of its own, outside of any graph. `_version()` of the two is one
// and counts what was done in place to either.
at::Tensor alias(const at::Tensor& tensor);

}  // namespace troika::compat
