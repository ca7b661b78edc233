// Chooses the blocks of a model that are recomputed in the backward pass: by a policy, or the
// fastest choice that fits into a given memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika::layout {

// Blocks [begin, end), of which only the input of the first is kept.
struct RecomputedSegment {
  size_t begin = 0;
  size_t end = 0;
  // Parts of these blocks that are recomputed once more inside them.
  std::vector<RecomputedSegment> inside = {};
  bool keep_products = false;  // as nn::CheckpointOptions

  bool operator==(const RecomputedSegment&) const = default;
};

// In ascending order. Blocks in none keep what they save.
using RecomputePlan = std::vector<RecomputedSegment>;

// By policy:
//   "none";
//   "full": each block by itself;
//   "selective": likewise, but for what its products come to (keep_products);
//   "every_K": each K-th block by itself, from the first on, as in "every_2";
//   "sqrt": about sqrt(blocks) segments of equal length but for the last, which is kept: the
//     activations of 2 sqrt(blocks) blocks at a time, and one more forward pass at most (Chen et
//     al. 2016, arXiv 1604.06174, section 4.1).
// Throws Error(usage) for others; see recompute_budget() for "budget:BYTES".
RecomputePlan recompute_plan(const std::string& policy, size_t blocks);

// Costs of one block of a chain. Times in any one unit.
struct BlockCost {
  double forward = 0;
  double backward = 0;
  int64_t output_bytes = 0;  // of its output, and of the gradient with respect to that
  int64_t saved_bytes = 0;   // of all it keeps for its backward pass, its output included
};

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

}  // namespace troika::layout
