// Dropout (Srivastava et al., JMLR 15, 2014) whose masks follow from keys.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace troika::nn {

// The part of a larger tensor that a tensor is: places `offset` to offset + size(dim) of the
// `whole` along `dim`, which is not the samples'.
struct ShardOf {
  int64_t dim;
  int64_t offset;
  int64_t whole;
};

// `input` with each element replaced by 0 with probability p, 0 <= p < 1, and others divided by
// 1 - p. Where draws of this thread are keyed (keyed_draws.h), dim 0 must hold the same number of
// rows for each sample, or Error(usage) is thrown; masks take no memory, since the backward pass
// makes them again; and a shard gets its part of the mask of the whole. Elsewhere this is
// at::dropout(), whose masks come from LibTorch's default generator, and a shard is refused.
at::Tensor dropout(const at::Tensor& input, double p);
at::Tensor dropout(const at::Tensor& input, double p, const ShardOf& shard);

// torch::nn::Dropout with those masks: in evaluation mode it gives its input back.
class Dropout : public torch::nn::Module {
 public:
  explicit Dropout(double p) : p_(p) {}
  at::Tensor forward(const at::Tensor& input) const {
    return is_training() ? dropout(input, p_) : input;
  }

 private:
  const double p_;
};

}  // namespace troika::nn
