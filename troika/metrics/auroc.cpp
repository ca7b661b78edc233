#include "troika/metrics/auroc.h"

#include <cmath>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::metrics {

namespace {

// Counts pairs in which the positive scores higher, doubled to an integer because ties count half,
// so the result does not depend on the order of samples. `scores` is Double [n]; `positive` is Long
// [n] of 0 and 1.
double area(const at::Tensor& scores, const at::Tensor& positive) {
  const int64_t positives = positive.sum().item<int64_t>();
  const int64_t negatives = positive.numel() - positives;
  if (positives == 0 || negatives == 0 || scores.isnan().any().item<bool>()) return std::nan("");
  const auto [sorted, order] = scores.sort();
  const auto [distinct, place, count] =
      at::unique_consecutive(sorted, /*return_inverse=*/true, /*return_counts=*/true);
  const at::Tensor above =
      at::zeros_like(count).scatter_add(0, place, positive.index_select(0, order));
  const at::Tensor equal = count - above;  // negatives with the same score
  const at::Tensor below = equal.cumsum(0) - equal;
  const int64_t twice = (above * (2 * below + equal)).sum().item<int64_t>();
  return static_cast<double>(twice) /
         (2.0 * static_cast<double>(positives) * static_cast<double>(negatives));
}

at::Tensor no_scores(const AurocOptions& options) {
  const bool binary = options.task == ClassificationTask::binary;
  require_valid({.task = options.task, .num_classes = options.num_classes}, /*needs_classes=*/true);
  if (options.average == Average::micro || (binary && options.average != Average::macro)) {
    throw Error(
        "metrics", ErrorKind::usage,
        {.what = "bad average of an AUROC",
         .got = options.average == Average::micro ? "micro" : "one over classes",
         .expected = binary ? "macro, the default, for a binary task" : "macro, weighted or none"});
  }
  return binary ? at::empty({0}, at::kDouble) : at::empty({0, options.num_classes}, at::kDouble);
}

}  // namespace

Auroc::Auroc(const AurocOptions& options)
    : Metric({{Reduction::cat, no_scores(options)}, {Reduction::cat, at::empty({0}, at::kLong)}}),
      options_(options) {}

void Auroc::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  ScoredSamples samples;
  if (options_.task == ClassificationTask::binary) {
    samples = binary_samples(preds, target, options_.ignore_index);
  } else {
    samples = multiclass_samples(preds, target, options_.num_classes, options_.ignore_index);
    require_probabilities(samples.preds, "apply softmax to logits");
  }
  accumulate(0, samples.preds);
  accumulate(1, samples.target);
}

at::Tensor Auroc::compute_from(const std::vector<at::Tensor>& states) const {
  const at::Tensor &scores = states[0], &target = states[1];
  if (options_.task == ClassificationTask::binary) {
    return at::scalar_tensor(area(scores, target), at::kDouble);
  }
  const at::Tensor areas = at::empty({options_.num_classes}, at::kDouble);
  for (int64_t c = 0; c < options_.num_classes; ++c) {
    areas[c] = area(scores.select(1, c), target.eq(c).to(at::kLong));
  }
  if (options_.average == Average::none) return areas;
  const at::Tensor weights =
      options_.average == Average::weighted
          ? at::bincount(target, /*weights=*/{}, options_.num_classes).to(at::kDouble)
          : at::ones_like(areas);
  const at::Tensor defined = areas.isnan().logical_not().to(at::kDouble);
  return (areas.nan_to_num(0.0) * weights).sum() / (weights * defined).sum();
}

}  // namespace troika::metrics
