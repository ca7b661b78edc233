#include "troika/nn/batch_norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/batch_norm_relu.h"

namespace troika::nn {

void BatchNormImpl::take_over(const at::Tensor& new_weight, const at::Tensor& new_bias,
                              const at::Tensor& new_mean, const at::Tensor& new_var,
                              const at::Tensor& count) {
  parameters_["weight"] = weight = new_weight;
  parameters_["bias"] = bias = new_bias;
  if (!options.track_running_stats()) return;
  // LibTorch keeps buffers private: ours are other tensors in the same memory.
  running_mean.set_data(new_mean);
  running_var.set_data(new_var);
  num_batches_tracked.set_data(count);
}

double BatchNormImpl::count_batch() {
  const auto momentum = options.momentum();
  if (!is_training() || !options.track_running_stats()) return momentum.value_or(0.0);
  num_batches_tracked += 1;
  // Without momentum, the running value is the mean over all batches so far.
  return momentum ? *momentum : 1.0 / num_batches_tracked.item<double>();
}

at::Tensor BatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  if (is_training() && training_) return training_(*this, input);
  const double momentum = count_batch();
  return torch::nn::functional::batch_norm(input, own_mean(), own_var(),
                                           torch::nn::functional::BatchNormFuncOptions()
                                               .weight(weight)
                                               .bias(bias)
                                               .training(normalises_by_batch())
                                               .momentum(momentum)
                                               .eps(options.eps()));
}

at::Tensor BatchNormImpl::forward_relu(const at::Tensor& input) {
  const bool is_other = is_training() && training_;
  const bool needs_gradients =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || (weight.defined() && weight.requires_grad()));
  if (is_other || !needs_gradients || !normalises_by_batch() || !input.is_cpu() ||
      input.numel() == 0) {
    return forward(input).relu_();
  }
  _check_input_dim(input);
  return batch_norm_relu({.input = input,
                          .weight = weight,
                          .bias = bias,
                          .running_mean = own_mean(),
                          .running_var = own_var(),
                          .momentum = count_batch(),
                          .eps = options.eps()});
}

void BatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "troika::nn::BatchNorm(" << options.num_features() << ")";
}

at::Tensor BatchNormImpl::own(const at::Tensor& statistics) const {
  if (!part_ || !statistics.defined()) return statistics;
  const int64_t channels = statistics.size(0) / part_->count;
  return statistics.narrow(0, part_->index * channels, channels);
}

void BatchNormImpl::_check_input_dim(const at::Tensor& input) {
  const int64_t channels = options.num_features() / (part_ ? part_->count : 1);
  if (input.dim() >= 2 && input.size(1) == channels) return;
  throw Error("nn", ErrorKind::usage,
              {.what = "batch norm cannot read this input",
               .got = fmt::format("shape [{}]", fmt::join(input.sizes(), ", ")),
               .expected = fmt::format("[batch, {}, ...]", channels)});
}

}  // namespace troika::nn
