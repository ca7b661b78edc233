// Chooses the blocks of a model that are recomputed in the backward pass: by a policy, or by the
// fastest plan within a memory budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika::layout {

// Blocks [begin, end); only the input of the first one is kept.
struct RecomputedSegment {
  size_t begin = 0;
  size_t end = 0;
  // Parts of these blocks that are recomputed a second time within this segment.
  std::vector<RecomputedSegment> inside = {};
  bool keep_products = false;  // see nn::CheckpointOptions

  bool operator==(const RecomputedSegment&) const = default;
};

// In ascending order. Blocks outside all segments keep what they save.
using RecomputePlan = std::vector<RecomputedSegment>;

// Returns the plan of a policy:
//   "none";
//   "full": each block by itself;
//   "selective": the same, but results of matrix products are kept (keep_products);
//   "every_K": each K-th block by itself, starting with the first, as in "every_2";
//   "sqrt": about sqrt(blocks) segments of equal length, except the last, which is kept: stores the
//     activations of 2 sqrt(blocks) blocks at a time, and costs at most one more forward pass (Chen
//     et al. 2016, arXiv 1604.06174, section 4.1).
// Throws Error(usage) for any other policy; see recompute_budget() for "budget:BYTES".
RecomputePlan recompute_plan(const std::string& policy, size_t blocks);

// Splits policies for the stages of a pipeline, as in "none|every_2|full": one for each stage, or
// one for all of them. Throws Error(usage) for another number of them.
std::vector<std::string> recompute_policies(const std::string& policies, size_t stages);

// Returns the plan of a model whose stages end before the blocks `ends`, with recompute_plan() of
// each stage's policy for the blocks of the stage.
RecomputePlan recompute_plan(const std::string& policies, const std::vector<size_t>& ends);

// Costs of one block of a chain. Times are in any common unit.
struct BlockCost {
  double forward = 0;
  double backward = 0;
  int64_t output_bytes = 0;  // of its output; the gradient of the output has the same size
  int64_t saved_bytes = 0;   // kept for its backward pass, including its output
};

// Returns the bytes of the policy "budget:BYTES", as in "budget:6GiB"; nothing for another policy.
// Throws Error(usage) if BYTES is not a number of bytes >= 1.
std::optional<int64_t> recompute_budget(const std::string& policy);

struct BudgetedPlan {
  RecomputePlan plan;
  double time = 0;  // forward and backward pass, including recomputation
};

// Returns the fastest plan in which activations and their gradients take at most `budget_bytes` at
// any time, without the input of the first block and the temporary memory of running blocks. Found
// by dynamic programming over memory in 500 slots, with sizes rounded up to slots (Beaumont,
// Eyraud-Dubois, Herrmann, Joly and Shilova 2019, arXiv 1911.13214, theorem 1). Throws Error(usage)
// if no plan fits.
BudgetedPlan plan_for_budget(const std::vector<BlockCost>& blocks, int64_t budget_bytes);

}  // namespace troika::layout
