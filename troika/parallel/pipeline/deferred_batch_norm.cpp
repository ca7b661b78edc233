#include "troika/parallel/pipeline/deferred_batch_norm.h"

#include <utility>

#include "troika/compat/torch.h"
#include "troika/nn/batch_norm.h"

namespace troika::parallel {

DeferredBatchNorm::DeferredBatchNorm(torch::nn::Module& module, comm::Group sharing)
    : sharing_(std::move(sharing)) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    auto norm = std::dynamic_pointer_cast<nn::BatchNormImpl>(child);
    if (!norm || norm->training() || !norm->options.track_running_stats()) continue;
    layers_.push_back(std::make_unique<Layer>(Layer{std::move(norm), 0, {}}));
    auto& layer = *layers_.back();
    layer.norm->set_training([this, &layer](nn::BatchNormImpl&, const at::Tensor& input) {
      return normalise(layer, input);
    });
  }
}

DeferredBatchNorm::~DeferredBatchNorm() {
  for (const auto& layer : layers_) layer->norm->set_training({});
}

at::Tensor DeferredBatchNorm::normalise(Layer& layer, const at::Tensor& input) const {
  const auto& norm = *layer.norm;
  const double eps = norm.options.eps();
  auto [output, mean, inverse] =
      at::native_batch_norm(input, norm.weight, norm.bias, {}, {}, /*training=*/true, 0, eps);
  if (!counts_ || input.numel() == 0) return output;
  const at::NoGradGuard no_grad;
  const auto mean64 = mean.to(at::kDouble);
  const auto square = inverse.to(at::kDouble).pow(-2) - eps + mean64 * mean64;
  const double count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  const auto sums = at::stack({mean64, square}) * count;
  layer.sum = layer.sum.defined() ? layer.sum + sums : sums;
  layer.count += count;
  return output;
}

void DeferredBatchNorm::merge() {
  if (sharing_.size() == 1 || layers_.empty()) return;
  std::vector<double> counts;
  for (const auto& layer : layers_) counts.push_back(layer->count);
  const auto all = at::tensor(counts, at::kDouble);
  sharing_.all_reduce(all, comm::ReduceOp::sum, {.label = "counts of batch norms"}).wait();
  for (size_t i = 0; i < layers_.size(); ++i) {
    auto& [norm, count, sum] = *layers_[i];
    count = all[static_cast<int64_t>(i)].item<double>();
    if (count == 0) continue;
    // A rank without micro-batches in this step has no sums.
    if (!sum.defined()) {
      sum =
          at::zeros({2, norm->own_mean().numel()}, norm->running_mean.options().dtype(at::kDouble));
    }
    sharing_.all_reduce(sum, comm::ReduceOp::sum, {.label = "sums of batch norms"}).wait();
  }
}

void DeferredBatchNorm::update() {
  const at::NoGradGuard no_grad;
  merge();
  for (const auto& layer : layers_) {
    const double count = std::exchange(layer->count, 0);
    if (count == 0) continue;
    auto& norm = *layer->norm;
    norm.num_batches_tracked += 1;
    const double momentum =
        norm.options.momentum().value_or(1.0 / norm.num_batches_tracked.item<double>());
    const auto means = std::exchange(layer->sum, {}) / count;
    const auto variance = (means[1] - means[0] * means[0]) * (count > 1 ? count / (count - 1) : 1);
    norm.own_mean().lerp_(means[0].to(norm.running_mean.scalar_type()), momentum);
    norm.own_var().lerp_(variance.to(norm.running_var.scalar_type()), momentum);
  }
}

}  // namespace troika::parallel
