// Batch normalisation with the statistics of the batches of all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Makes the batch norms below `module` normalise by the batches of all ranks of `group` while they
// train, and gives their names. In training, counts, means and sums of squared differences are
// gathered and merged in float64 in the order of ranks (Chan, Golub and LeVeque 1979), so batches
// may differ in size and be empty, and all ranks get the same bits. Forward and backward block
// until every rank has come. Gradients of weight and bias are those of this rank's batch, for
// DataParallel to average. Forward throws Error(usage) for fewer than two values a channel over all
// ranks.
//
// Converted are nn::BatchNorm, the layer of the model zoo, wherever it stands, and
// torch::nn::BatchNorm{1,2,3}d that are children of a torch::nn::Sequential: nn::BatchNorm takes
// their place there, so convert a Sequential before nn::from_sequential(). Other layers of LibTorch
// are held by members that nobody else can change: for them it throws Error(usage) naming the
// first, with nothing changed.
//
// Parameters stay the same tensors and buffers in the same memory, under the same names, so it may
// come before or after the optimizer and DataParallel are made. Blocks; to be called by all ranks.
// The layers share a group split from `group`, which lives as long as they do.
std::vector<std::string> convert_batch_norm(torch::nn::Module& module, const comm::Group& group);

// The same for as long as this object lives: then the module's layers are again what they were,
// with the parameters and statistics that they have by then. The module must outlive it.
class [[nodiscard]] ScopedSyncBatchNorm {
 public:
  ScopedSyncBatchNorm(torch::nn::Module& module, const comm::Group& group);
  ~ScopedSyncBatchNorm();
  ScopedSyncBatchNorm(const ScopedSyncBatchNorm&) = delete;
  ScopedSyncBatchNorm& operator=(const ScopedSyncBatchNorm&) = delete;

 private:
  std::vector<std::function<void()>> undo_;
};

}  // namespace troika::parallel
