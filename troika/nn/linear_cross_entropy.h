// Cross entropy of a linear layer with many classes, without storing all logits at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "troika/nn/loss_terms.h"

namespace troika::nn {

// Whether linear_cross_entropy() supports this tensor's type or, if autocast is on, autocast's
// type. It does not support float16, since it divides by the number of targets before the loss
// scale is applied.
bool takes_linear_cross_entropy(const at::Tensor& hidden);

// Returns the mean cross entropy, with `terms`, of logits = hidden weight^T, a tensor of one
// element, in float32 or float64. `hidden` is [..., width], `weight` [classes, width] on the same
// device, `targets`
// [...] of Long: class numbers, or `ignored` for targets to skip. The mean
// divides by `divisor` or, without one, by the number of targets that are not skipped; it is NaN if
// that is 0.
//
// Logits are computed for linear_cross_entropy_rows() rows at a time. With gradients on, the
// gradients of `hidden` and `weight` are computed from each part of the logits immediately. They
// are kept instead of the logits, and the backward pass scales them in place (Hsu et al. 2024,
// arXiv 2410.10989, section 3.2). So backward() may run only once through the graph, and there are
// no second derivatives. Under autocast, products have autocast's type. Gradients of the weight are
// summed in at least float32. Requires takes_linear_cross_entropy(). Throws LibTorch's errors for
// shapes that do not match and, on the CPU, for a target that is not a class number.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t ignored,
                                const LossTerms& terms = {},
                                const std::optional<int64_t>& divisor = {});

// Returns the number of rows computed at a time.
int64_t linear_cross_entropy_rows(int64_t classes);

// The plain cross entropy of each row and the class of its greatest logit, [rows] each, in the
// order of hidden.flatten(0, -2). Computed without gradients; otherwise as linear_cross_entropy().
struct RowLosses {
  at::Tensor losses;
  at::Tensor predictions;  // of Long
};
RowLosses linear_cross_entropy_of_rows(const at::Tensor& hidden, const at::Tensor& weight,
                                       const at::Tensor& targets, int64_t ignored);

}  // namespace troika::nn
