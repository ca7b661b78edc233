// A batch as the micro-batches of a pipeline's step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "troika/parallel/pipeline/micro_batch_source.h"

namespace troika::parallel {

// Splits a batch along dim 0, and weights micro-batches by their numbers of samples.
class SplitBatch : public MicroBatchSource {
 public:
  using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;

  // Throws Error(usage) for fewer samples than micro-batches, and for inputs and targets of
  // different numbers of samples.
  SplitBatch(const at::Tensor& inputs, const at::Tensor& targets, int micro_batches, Loss loss);

  nn::Tensors inputs(int micro_batch) override;
  at::Tensor loss(int micro_batch, nn::Tensors outputs) override;
  at::Tensor root(int micro_batch, const at::Tensor& loss) override;
  // The share of a micro-batch in the mean over all samples.
  double weight(int micro_batch) const;

 private:
  std::vector<at::Tensor> inputs_, targets_;
  int64_t samples_;
  Loss loss_;
};

}  // namespace troika::parallel
