// A small learner in float64 whose weights and data are fixed functions of numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "troika/comm/group.h"
#include "troika/optim/optimizer.h"

namespace troika::parallel {

inline const optim::OptimizerOptions kAdamW{.name = "adamw", .lr = 0.02, .weight_decay = 0.1};

struct Replica {
  // The same weights each time.
  explicit Replica(const optim::OptimizerOptions& options);

  // Gradients of the loss on the samples of this rank and step, in place of those there were.
  void backward(int rank, int step);
  // The same, added to those there are, of `factor` times the loss.
  void add_backward(int rank, int step, double factor = 1);
  std::vector<at::Tensor> values() const;  // copies
  void assign(size_t parameter, const at::Tensor& value);

  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<optim::FlatOptimizer> optimizer;
};

void expect_same_bits_on_all_ranks(const comm::Group& group, const std::vector<at::Tensor>& values);
// Relative to the largest value of each; 0 for the same bits.
void expect_near(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& oracle,
                 double tolerance);

}  // namespace troika::parallel
