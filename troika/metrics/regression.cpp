#include "troika/metrics/regression.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::metrics {

namespace {

enum : size_t { kSquaredErrors, kMoments, kLeast, kGreatest };  // the states of R2Score

[[noreturn]] void refuse_shapes(const at::Tensor& preds, const at::Tensor& target,
                                const std::string& expected) {
  throw Error("metrics", ErrorKind::usage,
              {.what = "predictions and targets of a metric do not go together",
               .got = fmt::format("[{}] and [{}]", fmt::join(preds.sizes(), ", "),
                                  fmt::join(target.sizes(), ", ")),
               .expected = expected});
}

at::Tensor differences(const at::Tensor& preds, const at::Tensor& target) {
  if (preds.sizes() != target.sizes()) refuse_shapes(preds, target, "the same shape");
  return preds.to(at::kDouble) - target.to(preds.device(), at::kDouble);
}

at::Tensor one_element(double value) {
  return at::full({1}, value, at::kDouble);
}

}  // namespace

void MeanSquaredError::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  const at::Tensor error = differences(preds, target);
  add(error.square().sum(), static_cast<double>(error.numel()));
}

double MeanSquaredError::value_of(double ratio) const {
  return squared_ ? ratio : std::sqrt(ratio);
}

void MeanAbsoluteError::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  const at::Tensor error = differences(preds, target);
  add(error.abs().sum(), static_cast<double>(error.numel()));
}

// Does not keep sums of targets and of squared targets, because their difference loses all digits
// if the mean is large. Each update instead stores a row: count, mean, sum of differences from this
// mean, and sum of squared differences. The mean is rounded, so its differences do not sum exactly
// to 0 (Chan, Golub and LeVeque 1983, eq. 1.7). The minimum and maximum of the targets show exactly
// whether all are equal.
R2Score::R2Score()
    : Metric({{Reduction::sum, at::zeros({1}, at::kDouble)},
              {Reduction::cat, at::empty({0, 4}, at::kDouble)},
              {Reduction::min, one_element(std::numeric_limits<double>::infinity())},
              {Reduction::max, one_element(-std::numeric_limits<double>::infinity())}}) {}

void R2Score::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  if (target.dim() != 1 && !(target.dim() == 2 && target.size(1) == 1)) {
    refuse_shapes(preds, target, "[samples] or [samples, 1]");
  }
  const at::Tensor squared_errors = differences(preds, target).square().sum();
  if (target.numel() == 0) return;
  const at::Tensor values = target.to(at::kDouble), mean = values.mean();
  const at::Tensor from_mean = values - mean;
  accumulate(kSquaredErrors, squared_errors.view({1}));
  accumulate(kMoments, at::stack({at::full_like(mean, values.numel()), mean, from_mean.sum(),
                                  from_mean.square().sum()})
                           .unsqueeze(0));
  accumulate(kLeast, values.min().view({1}));
  accumulate(kGreatest, values.max().view({1}));
}

at::Tensor R2Score::compute_from(const std::vector<at::Tensor>& states) const {
  const double residual = states[kSquaredErrors].item<double>();
  const auto column = [&](int64_t i) { return states[kMoments].select(1, i); };
  const at::Tensor counts = column(0);
  const double count = counts.sum().item<double>();
  if (count < 2 || std::isnan(residual)) return at::scalar_tensor(NAN, at::kDouble);
  if (states[kLeast].item<double>() == states[kGreatest].item<double>()) {
    return at::scalar_tensor(residual == 0 ? 1.0 : 0.0, at::kDouble);
  }
  // First takes the means relative to the first mean (small and exact), then relative to the
  // overall mean.
  const at::Tensor shifts = column(1) - column(1)[0];
  const at::Tensor from_mean = shifts - (column(2) + counts * shifts).sum() / count;
  const at::Tensor total =
      (column(3) + 2 * from_mean * column(2) + counts * from_mean.square()).sum();
  return 1 - residual / total;
}

}  // namespace troika::metrics
