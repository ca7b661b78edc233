// A small float64 model whose weights and data are fixed functions of the rank and the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "troika/comm/group.h"
#include "troika/optim/optimizer.h"

namespace troika::parallel {

inline const optim::OptimizerOptions kAdamW{.name = "adamw", .lr = 0.02, .weight_decay = 0.1};

struct Replica {
  // Starts from the same weights each time.
  explicit Replica(const optim::OptimizerOptions& options);

  // Replaces the gradients by those of the loss on the samples of this rank and step.
  void backward(int rank, int step);
  // Adds the gradients of `factor` times the loss to the present ones.
  void add_backward(int rank, int step, double factor = 1);
  std::vector<at::Tensor> values() const;  // copies
  void assign(size_t parameter, const at::Tensor& value);

  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<optim::FlatOptimizer> optimizer;
};

void expect_same_bits_on_all_ranks(const comm::Group& group, const std::vector<at::Tensor>& values);
// The tolerance is relative to the largest value of each tensor; 0 means the same bits.
void expect_near(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& oracle,
                 double tolerance);

}  // namespace troika::parallel
