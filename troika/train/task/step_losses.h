// Collects losses of micro-batches without waiting for the GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "troika/data/batch.h"

namespace troika::train {

// The loss of one micro-batch of this rank.
struct StepLoss {
  double loss = 0;
  int64_t step = 0;  // the optimizer step, from 0
  int64_t size = 1;  // samples
  // The indices of the samples in the data set, in batch order, and the epoch. They suffice to load
  // the micro-batch again.
  std::vector<int64_t> samples = {};
  int64_t epoch = 0;
};

// Keeps losses on the device, without synchronization, until read() fetches all of them at once.
class StepLosses {
 public:
  // `loss` has one element. `batch` must have the indices of its samples.
  void add(const at::Tensor& loss, int64_t step, int64_t epoch, const data::Batch& batch);
  size_t count() const { return kept_.size(); }
  // Returns the losses since the last call, in order. Waits for the device.
  std::vector<StepLoss> read();

 private:
  std::vector<StepLoss> kept_;  // their losses are in losses_
  std::vector<at::Tensor> losses_;
};

}  // namespace troika::train
