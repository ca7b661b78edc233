// LibTorch's linear layer and embedding, with hooks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "troika/nn/hooked.h"

namespace troika::nn {

// torch::nn::Linear: its parameters `weight` [out, in] and `bias` [out], drawn in the same way.
class Linear : public torch::nn::LinearImpl, public Hooked {
 public:
  Linear(int64_t in, int64_t out) : LinearImpl(in, out) {}
  // Without bias; draws the weight from N(0, deviation^2).
  Linear(int64_t in, int64_t out, double deviation);

  // [..., in] -> [..., out]
  at::Tensor forward(const at::Tensor& input) const;
};

// torch::nn::Embedding: its parameter `weight` [rows, width], drawn from N(0, 1).
class Embedding : public torch::nn::EmbeddingImpl {
 public:
  Embedding(int64_t rows, int64_t width) : EmbeddingImpl(rows, width) {}

  // Long [...] -> [..., width]
  at::Tensor forward(const at::Tensor& indices);

  // forward() returns lookup(indices, weight) in place of the rows of the weight; null: as before.
  using Lookup = std::function<at::Tensor(const at::Tensor& indices, const at::Tensor& weight)>;
  void hook_lookup(Lookup lookup) { lookup_ = std::move(lookup); }

 private:
  Lookup lookup_;
};

}  // namespace troika::nn
