// Batch norms that run on micro-batches and update their running statistics once a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "troika/comm/group.h"

namespace torch::nn {
class Module;
}

namespace troika::nn {
class BatchNormImpl;
}

namespace troika::parallel {

// Has the nn::BatchNorm layers of a module normalise each micro-batch by its own statistics, and
// update their running statistics once a step, by the mean and the unbiased variance over all
// micro-batches of this rank and of the other ranks of a group (Huang et al. 2019, arXiv
// 1811.06965, section 2.2). Layers that have another training function
// (nn::BatchNormImpl::set_training()) and layers of LibTorch are left alone: the latter update
// theirs with each micro-batch.
class DeferredBatchNorm {
 public:
  // `sharing` are the ranks that share the micro-batches of a step, this one included. The module
  // must outlive this object, whose destructor restores the layers.
  DeferredBatchNorm(torch::nn::Module& module, comm::Group sharing);
  ~DeferredBatchNorm();
  DeferredBatchNorm(const DeferredBatchNorm&) = delete;
  DeferredBatchNorm& operator=(const DeferredBatchNorm&) = delete;

  // While this guard lives, forward passes count towards the running statistics. Recomputed forward
  // passes must run without this guard.
  class [[nodiscard]] Counting {
   public:
    explicit Counting(DeferredBatchNorm& layers) : layers_(layers) { layers_.counts_ = true; }
    ~Counting() { layers_.counts_ = false; }
    Counting(const Counting&) = delete;
    Counting& operator=(const Counting&) = delete;

   private:
    DeferredBatchNorm& layers_;
  };

  // Updates the running statistics by the forward passes since the last call. Called by all ranks
  // of the group; blocks.
  void update();

 private:
  struct Layer {
    std::shared_ptr<nn::BatchNormImpl> norm;
    double count = 0;  // values per channel
    at::Tensor sum;    // of the values, and of their squares, float64 [2, channels]
  };

  at::Tensor normalise(Layer& layer, const at::Tensor& input) const;
  // Adds up the layers' counts and sums over the group.
  void merge();

  const comm::Group sharing_;
  std::vector<std::unique_ptr<Layer>> layers_;
  bool counts_ = false;
};

}  // namespace troika::parallel
