#include "troika/metrics/mean.h"

#include <array>
#include <cmath>

#include "troika/compat/torch.h"
#include "troika/metrics/labels.h"

namespace troika::metrics {

RatioMetric::RatioMetric() : Metric({{Reduction::sum, at::zeros({2}, at::kDouble)}}) {}

void RatioMetric::add(const at::Tensor& sum, const at::Tensor& count) {
  const torch::NoGradGuard no_grad;
  accumulate(0,
             at::stack({sum.to(at::kDouble).reshape({}),
                        count.to(sum.device(), at::kDouble, /*non_blocking=*/true).reshape({})}));
}

void RatioMetric::add(const at::Tensor& sum, double count) {
  add(sum, at::scalar_tensor(count, at::kDouble));
}

at::Tensor RatioMetric::compute_from(const std::vector<at::Tensor>& states) const {
  const double* state = states[0].data_ptr<double>();
  return at::scalar_tensor(value_of(state[0] / state[1]), at::kDouble);
}

void Mean::update(const at::Tensor& value, const at::Tensor& weight) {
  const torch::NoGradGuard no_grad;
  const at::Tensor weights =
      weight.to(value.device(), at::kDouble, /*non_blocking=*/true).expand_as(value);
  add((value.to(at::kDouble) * weights).sum(), weights.sum());
}

void Mean::update(const at::Tensor& value, double weight) {
  const torch::NoGradGuard no_grad;
  if (value.is_cpu() && value.numel() == 1) {
    // Gives the same bits with fewer LibTorch calls: every training step does this twice.
    std::array<double, 2> sum_and_count{value.item<double>() * weight, weight};
    return accumulate(0, at::from_blob(sum_and_count.data(), {2}, at::kDouble));
  }
  add(value.sum(at::kDouble) * weight, static_cast<double>(value.numel()) * weight);
}

void Mean::update(double value, double weight) {
  update(at::scalar_tensor(value, at::kDouble), weight);
}

Perplexity::Perplexity(int64_t ignore_index) : ignore_index_(ignore_index) {}

void Perplexity::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  const auto samples = multiclass_samples(preds, target, /*num_classes=*/0, ignore_index_);
  // Computes in float32 at least, because 16-bit types are too inaccurate for sums of exponentials.
  // Sums in float64: a rounded mean over the batch would depend on how samples were grouped into
  // batches.
  const auto type = at::promote_types(samples.preds.scalar_type(), at::kFloat);
  const at::Tensor losses = at::cross_entropy_loss(samples.preds.to(type), samples.target,
                                                   /*weight=*/{}, at::Reduction::None);
  add(losses.sum(at::kDouble), static_cast<double>(losses.numel()));
}

double Perplexity::value_of(double ratio) const {
  return std::exp(ratio);
}

}  // namespace troika::metrics
