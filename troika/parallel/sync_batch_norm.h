// Batch normalisation with the statistics of the batches of all ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace troika::parallel {

// For inputs [batch, channels, ...]; in evaluation mode and with statistics of one rank it is
// LibTorch's layer. In training, counts, means and sums of squared differences are gathered and
// merged in float64 in the order of ranks (Chan, Golub and LeVeque 1979), so batches may differ in
// size and be empty, and all ranks get the same bits. Forward and backward block until every rank
// has come. Gradients of weight and bias are those of this rank's batch, for DataParallel to
// average. Throws Error(usage) for fewer than two values a channel over all ranks.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
  using Base = torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions>;

 public:
  // `group` should be for batch norm alone: its collectives come in the middle of backward.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group);
  // In place of `layer`, a torch::nn::BatchNorm{1,2,3}d: with its parameters, buffers and mode.
  template <typename Layer>
  SyncBatchNormImpl(const Layer& layer, comm::Group group)
      : SyncBatchNormImpl(layer.options, std::move(group)) {
    take_over(layer.weight, layer.bias, layer.running_mean, layer.running_var,
              layer.num_batches_tracked);
    train(layer.is_training());
  }

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const at::Tensor& input) override;
  void take_over(const at::Tensor& new_weight, const at::Tensor& new_bias,
                 const at::Tensor& new_mean, const at::Tensor& new_var, const at::Tensor& count);

  comm::Group group_;
};
TORCH_MODULE(SyncBatchNorm);

// Makes the batch norms below `module` use the statistics of all ranks of `group`, on a group split
// from it, and gives their names. Parameters stay the same tensors and buffers in the same memory,
// under the same names, so it may come before or after the optimizer and DataParallel are made.
// Converted are
// torch::nn::BatchNorm{1,2,3}d that are children of a torch::nn::Sequential, which are replaced by
// SyncBatchNorm. Others, the model zoo's among them, are held by members that nobody else can
// change: for them it throws Error(usage) naming the first, with nothing changed. Convert a
// Sequential before nn::from_sequential(). Blocks; to be called by all ranks.
std::vector<std::string> convert_batch_norm(torch::nn::Module& module, const comm::Group& group);

}  // namespace troika::parallel
