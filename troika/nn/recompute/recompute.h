// The forward pass of a model of which some blocks are recomputed in the backward pass:
//
//   const nn::Recompute forward(model, nn::recompute_plan("sqrt", model->blocks().size()));
//   loss(forward(inputs)).backward();
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "troika/layout/recompute.h"
#include "troika/nn/model.h"

namespace troika::nn {

using layout::recompute_plan;
using layout::RecomputedSegment;
using layout::RecomputePlan;

// The forward pass of a model under a plan; a copy shares the model. Gradients have the bits of
// Model::forward's, and buffers are updated once. See checkpoint.h.
class Recompute {
 public:
  Recompute(std::shared_ptr<Model> model, RecomputePlan plan);
  // As Model::forward.
  Tensors operator()(Tensors inputs) const;
  at::Tensor operator()(const at::Tensor& input) const;

 private:
  struct Planned;
  std::shared_ptr<const Planned> planned_;
};

}  // namespace troika::nn
