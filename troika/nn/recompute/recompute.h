// Which blocks of a model are recomputed in the backward pass, and the forward pass that does it:
//
//   const nn::Recompute forward(model, nn::recompute_plan("sqrt", model->blocks().size()));
//   loss(forward(inputs)).backward();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "troika/nn/model.h"

namespace troika::nn {

// Blocks [begin, end), of which only the input of the first is kept.
struct RecomputedSegment {
  size_t begin = 0;
  size_t end = 0;
  // Parts of these blocks that are recomputed once more inside them.
  std::vector<RecomputedSegment> inside = {};
  bool keep_products = false;  // CheckpointOptions::keep_products

  bool operator==(const RecomputedSegment&) const = default;
};

// In ascending order. Blocks in none keep what they save.
using RecomputePlan = std::vector<RecomputedSegment>;

// By policy:
//   "none";
//   "full": each block by itself;
//   "selective": likewise, but for what its products come to (CheckpointOptions::keep_products);
//   "every_K": each K-th block by itself, from the first on, as in "every_2";
//   "sqrt": about sqrt(blocks) segments of equal length but for the last, which is kept: the
//     activations of 2 sqrt(blocks) blocks at a time, and one more forward pass at most (Chen et
//     al. 2016, arXiv 1604.06174, section 4.1).
// Throws Error(usage) for others. For a plan within a number of bytes, see budget.h.
RecomputePlan recompute_plan(const std::string& policy, size_t blocks);

// The forward pass of a model under a plan; a copy shares the model. Gradients have the bits of
// Model::forward's, and buffers are updated once. See checkpoint.h.
class Recompute {
 public:
  Recompute(std::shared_ptr<Model> model, RecomputePlan plan);
  at::Tensor operator()(const at::Tensor& input) const;

 private:
  struct Planned;
  std::shared_ptr<const Planned> planned_;
};

}  // namespace troika::nn
