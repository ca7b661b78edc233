// The fastest plan of recomputation that fits into a given memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troika/nn/recompute/recompute.h"

namespace troika::nn {

// Costs of one block of a chain. Times in any one unit.
struct BlockCost {
  double forward = 0;
  double backward = 0;
  int64_t output_bytes = 0;  // of its output, and of the gradient with respect to that
  int64_t saved_bytes = 0;   // of all it keeps for its backward pass, its output included
};

// By running each block of the model, after a first time, forward and backward, on its
// predecessor's output; in seconds, the least of three. Random generators and buffers are left as
// they were.
std::vector<BlockCost> measure_blocks(const Model& model, const at::Tensor& input);

// Estimates costs in FLOPs, from the products of each block and the bytes that it saves. Unlike
// measure_blocks() it works on tensors without memory (compat::FakeTensorGuard), too.
std::vector<BlockCost> estimate_blocks(const Model& model, const at::Tensor& input);

// The bytes of the policy "budget:BYTES", as in "budget:6GiB"; nothing for another policy. Throws
// Error(usage) where BYTES is no number of bytes >= 1.
std::optional<int64_t> recompute_budget(const std::string& policy);

struct BudgetedPlan {
  RecomputePlan plan;
  double time = 0;  // of forward and backward pass, recomputation included
};

// Activations and gradients of activations under the plan take at most `budget_bytes` at any time,
// beside the input of the first block and what the blocks need while they compute. The least time
// of all plans, found by dynamic programming over memory in 500 slots, into which sizes are rounded
// up (Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, arXiv 1911.13214, theorem 1).
// Throws Error(usage) where no plan fits.
BudgetedPlan plan_for_budget(const std::vector<BlockCost>& blocks, int64_t budget_bytes);

}  // namespace troika::nn
