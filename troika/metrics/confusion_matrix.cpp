#include "troika/metrics/confusion_matrix.h"

#include "troika/compat/torch.h"

namespace troika::metrics {

namespace {

int64_t classes_of(const ConfusionMatrixOptions& options) {
  const LabelRule rule{options.task, options.num_classes, 1, options.threshold,
                       options.ignore_index};
  require_valid(rule, /*needs_classes=*/true);
  return options.task == ClassificationTask::binary ? 2 : options.num_classes;
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options)
    : Metric({{Reduction::sum, at::zeros({classes_of(options), classes_of(options)}, at::kLong)}}),
      rule_{options.task, options.num_classes, 1, options.threshold, options.ignore_index},
      classes_(classes_of(options)),
      normalize_(options.normalize) {}

void ConfusionMatrix::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  const auto [predicted, targets] = to_labels(rule_, preds, target);
  accumulate(0, at::bincount(targets * classes_ + predicted, /*weights=*/{}, classes_ * classes_)
                    .view({classes_, classes_}));
}

at::Tensor ConfusionMatrix::compute_from(const std::vector<at::Tensor>& states) const {
  const at::Tensor& counts = states[0];
  if (normalize_ == Normalize::none) return counts;
  const at::Tensor totals = normalize_ == Normalize::target       ? counts.sum(1, /*keepdim=*/true)
                            : normalize_ == Normalize::prediction ? counts.sum(0, /*keepdim=*/true)
                                                                  : counts.sum();
  return counts.to(at::kDouble) / totals.clamp_min(1);
}

}  // namespace troika::metrics
