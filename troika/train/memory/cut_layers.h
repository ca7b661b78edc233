// The layers of a model as one rank of a tensor axis has them, without the other ranks.
#pragma once

#include <functional>
#include <optional>

#include "troika/comm/call/call.h"
#include "troika/layout/plan.h"
#include "troika/nn/model.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::train {

// Cuts a model whose tensors have no memory (compat::FakeTensorGuard) as rank 0 of a tensor axis
// has it, during the lifetime of this object. No rank has more of it. Passes run this rank's part,
// and their collectives end at once.
class CutLayers {
 public:
  CutLayers() = default;  // cuts nothing
  // `observe`, if not empty, is called for each collective. Throws what TensorParallel's
  // constructor throws. The model must outlive this object.
  CutLayers(nn::Model& model, const parallel::SplitTable& table, int ranks, bool sequence,
            std::function<void(const comm::Call&)> observe = {});
  // Makes the parameters whole again, without memory.
  ~CutLayers();
  CutLayers(const CutLayers&) = delete;
  CutLayers& operator=(const CutLayers&) = delete;

 private:
  std::optional<parallel::TensorParallel> tensor_;
};

}  // namespace troika::train
