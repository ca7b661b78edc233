// Batch normalisation whose statistics may cover the batches of several processes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <iosfwd>
#include <optional>

#include "troika/nn/hooked.h"

namespace troika::nn {

// Replaces torch::nn::BatchNorm1d, 2d and 3d, for inputs [batch, channels, ...], with the same
// options, names of parameters and buffers, and bits. A model that uses it need not know whether
// its statistics are those of one rank or of all ranks (parallel/sync_batch_norm.h).
class BatchNormImpl
    : public torch::nn::NormImplBase<0, BatchNormImpl, torch::nn::BatchNormOptions> {
  using Base = torch::nn::NormImplBase<0, BatchNormImpl, torch::nn::BatchNormOptions>;

 public:
  // The forward pass in training: normalises the input and updates the running statistics.
  using Training = std::function<at::Tensor(BatchNormImpl&, const at::Tensor& input)>;

  explicit BatchNormImpl(const torch::nn::BatchNormOptions& options) : Base(options) {}
  // Replaces `layer`, a torch::nn::BatchNorm{1,2,3}d: takes over its training mode, its parameters
  // as the same tensors, and its buffers in the same memory.
  template <size_t D, typename Derived>
  explicit BatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& layer)
      : BatchNormImpl(layer.options) {
    take_over(layer.weight, layer.bias, layer.running_mean, layer.running_var,
              layer.num_batches_tracked);
    train(layer.is_training());
  }

  // Throws Error(usage) for an input of another shape.
  at::Tensor forward(const at::Tensor& input);
  // Returns relu(forward(input)), with the same bits. In training on the CPU it is one node of the
  // graph instead of two, and can be differentiated only once (compat/autograd.h).
  at::Tensor forward_relu(const at::Tensor& input);
  // Replaces LibTorch's forward pass in training; an empty function restores it. Copies and clones
  // of the layer have the same replacement.
  void set_training(Training training) { training_ = std::move(training); }
  const Training& training() const { return training_; }

  // The inputs, the weight and the bias are those of a part of the channels from now on; nothing:
  // of all. The running statistics stay those of all channels; only the part's are read and
  // updated. `part.dim` is not used.
  void use_part(const std::optional<EqualPart>& part) { part_ = part; }
  const std::optional<EqualPart>& part() const { return part_; }
  // Return the running statistics of the layer's channels, in the memory of the buffers; undefined
  // without.
  at::Tensor own_mean() const { return own(running_mean); }
  at::Tensor own_var() const { return own(running_var); }

  void pretty_print(std::ostream& stream) const override;

 private:
  bool normalises_by_batch() const { return is_training() || !options.track_running_stats(); }
  // Counts a batch in training. Returns the momentum with which the batch enters the running
  // statistics.
  double count_batch();
  at::Tensor own(const at::Tensor& statistics) const;
  void _check_input_dim(const at::Tensor& input) override;
  void take_over(const at::Tensor& new_weight, const at::Tensor& new_bias,
                 const at::Tensor& new_mean, const at::Tensor& new_var, const at::Tensor& count);

  Training training_;
  std::optional<EqualPart> part_;
};
TORCH_MODULE(BatchNorm);

}  // namespace troika::nn
