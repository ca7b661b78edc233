// Synchronized batch normalisation: statistics over the batches of all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// Makes the batch norms below `module` normalise by the batches of all ranks of `group` in
// training, and returns their names. In training, counts, means and sums of squared differences are
// gathered and merged in float64 in the order of ranks (Chan, Golub and LeVeque 1979). So batches
// may differ in size or be empty, and all ranks get the same bits. Forward and backward block until
// every rank has called them. Gradients of weight and bias are those of this rank's batch;
// DataParallel averages them. Forward throws Error(usage) for fewer than two values per channel
// over all ranks.
//
// Converts every nn::BatchNorm (the layer of the model zoo), and every torch::nn::BatchNorm{1,2,3}d
// that is a child of a torch::nn::Sequential. The latter are replaced by nn::BatchNorm, so convert
// a Sequential before nn::from_sequential(). Other LibTorch batch norms are held by members that
// only their owner can replace: for them it throws Error(usage) naming the first one, and changes
// nothing.
//
// Parameters stay the same tensors and buffers stay in the same memory, under the same names. So
// the call may come before or after the optimizer and DataParallel are made. Blocks; called by all
// ranks. The layers share a group split from `group`, which lives as long as they do.
std::vector<std::string> convert_batch_norm(torch::nn::Module& module, const comm::Group& group);

// Does the same for the lifetime of this object. Its destructor restores the module's original
// layers, with their current parameters and statistics. The module must outlive it.
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
