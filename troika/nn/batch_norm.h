// Batch normalisation whose batch may be more than this process's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <iosfwd>

namespace troika::nn {

// torch::nn::BatchNorm{1,2,3}d in one, for inputs [batch, channels, ...]: with their options, names
// of parameters and buffers, and bits. Whoever writes a model with it need not know whether its
// statistics will be those of one rank or of all (parallel/sync_batch_norm.h).
class BatchNormImpl
    : public torch::nn::NormImplBase<0, BatchNormImpl, torch::nn::BatchNormOptions> {
  using Base = torch::nn::NormImplBase<0, BatchNormImpl, torch::nn::BatchNormOptions>;

 public:
  // The forward pass in training: normalises the input and updates the running statistics.
  using Training = std::function<at::Tensor(BatchNormImpl&, const at::Tensor& input)>;

  explicit BatchNormImpl(const torch::nn::BatchNormOptions& options) : Base(options) {}
  // In place of `layer`, a torch::nn::BatchNorm{1,2,3}d: with its mode, its parameters as the same
  // tensors, its buffers in the same memory.
  template <size_t D, typename Derived>
  explicit BatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& layer)
      : BatchNormImpl(layer.options) {
    take_over(layer.weight, layer.bias, layer.running_mean, layer.running_var,
              layer.num_batches_tracked);
    train(layer.is_training());
  }

  // Throws Error(usage) for an input of another shape.
  at::Tensor forward(const at::Tensor& input);
  // relu(forward(input)), with the same bits. In training on the CPU it is one node of the graph
  // instead of two; that may be differentiated once (compat/autograd.h).
  at::Tensor forward_relu(const at::Tensor& input);
  // Takes the place of LibTorch's forward pass in training; an empty function gives it back.
  // Copies and clones of the layer take it with them.
  void set_training(Training training) { training_ = std::move(training); }
  const Training& training() const { return training_; }

  void pretty_print(std::ostream& stream) const override;

 private:
  bool normalises_by_batch() const { return is_training() || !options.track_running_stats(); }
  // Counts a batch in training; the momentum with which it enters the running statistics.
  double count_batch();
  void _check_input_dim(const at::Tensor& input) override;
  void take_over(const at::Tensor& new_weight, const at::Tensor& new_bias,
                 const at::Tensor& new_mean, const at::Tensor& new_var, const at::Tensor& count);

  Training training_;
};
TORCH_MODULE(BatchNorm);

}  // namespace troika::nn
