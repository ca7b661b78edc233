// Cross entropy of a linear layer of many classes, without its logits as a whole.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika::nn {

// Whether linear_cross_entropy() computes in this tensor's type, or in that of autocast if that is
// on. It does not in float16: it divides by the number of targets before a scaled loss multiplies.
bool takes_linear_cross_entropy(const at::Tensor& hidden);

// The mean cross entropy of logits = hidden weight^T, a tensor of one element, in float32 at least.
// `hidden` is [..., width], `weight` [classes, width] of the same device, `targets` [...] of Long:
// class numbers, or `ignored`, which do not count. Without a target that counts the mean is NaN.
//
// Logits are made for some rows at a time, as many as linear_cross_entropy_rows() says. With
// gradients on, the gradients of `hidden` and `weight` are computed from each part of the logits at
// once; they are kept instead of the logits, and the backward pass scales them in place (Hsu et al.
// 2024, arXiv 2410.10989, section 3.2). A graph with it can be gone through once, and has no second
// derivatives. Under autocast, products are of its type. Gradients of the weight are added up in
// float32 at least. Needs takes_linear_cross_entropy(). LibTorch's errors are thrown where shapes
// do not go together, and on the CPU for a target that is no class number.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t ignored);

// The rows of a part.
int64_t linear_cross_entropy_rows(int64_t classes);

// The losses of single rows, and the class of the greatest logit of each: [rows] each, in the order
// of hidden.flatten(0, -2). Without gradients; else as linear_cross_entropy().
struct RowLosses {
  at::Tensor losses;
  at::Tensor predictions;  // of Long
};
RowLosses linear_cross_entropy_of_rows(const at::Tensor& hidden, const at::Tensor& weight,
                                       const at::Tensor& targets, int64_t ignored);

}  // namespace troika::nn
