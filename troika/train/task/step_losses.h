// Losses of micro-batches that are still on the device that computes.
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
  // The samples' numbers in the data set, in their order, and the epoch: they load the micro-batch
  // again.
  std::vector<int64_t> samples = {};
  int64_t epoch = 0;
};

// Keeps losses on a GPU without waiting for it, until they are asked for: all are then read at
// once.
class StepLosses {
 public:
  // `loss` has one element. `batch` has its samples' numbers.
  void add(const at::Tensor& loss, int64_t step, int64_t epoch, const data::Batch& batch);
  size_t count() const { return kept_.size(); }
  // The losses since the last call, in their order. Waits for the device.
  std::vector<StepLoss> read();

 private:
  std::vector<StepLoss> kept_;  // without their losses
  std::vector<at::Tensor> losses_;
};

}  // namespace troika::train
