#include "troika/metrics/stat_scores.h"

#include <cmath>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::metrics {

namespace {

// Returns 0 where the denominator is 0, because the numerator is then 0 as well.
at::Tensor safe_divide(const at::Tensor& numerator, const at::Tensor& denominator) {
  return numerator / at::where(denominator.eq(0), at::ones_like(denominator), denominator);
}

// The number of columns of the counts: one for all classes together, or one per class.
int64_t columns_of(const StatScoresOptions& options) {
  return options.average == Average::micro ? 1 : options.num_classes;
}

}  // namespace

StatScores::StatScores(const StatScoresOptions& options)
    : Metric(
          {{Reduction::sum, at::zeros({4, std::max<int64_t>(columns_of(options), 1)}, at::kLong)}}),
      rule_{options.task, options.num_classes, options.top_k, options.threshold,
            options.ignore_index},
      average_(options.average) {
  require_valid(rule_, options.average != Average::micro);
  if (is_binary() && options.average != Average::micro) {
    throw Error("metrics", ErrorKind::usage,
                {.what = "bad average of a metric",
                 .got = "one over classes",
                 .expected = "micro, the default, for a binary task"});
  }
}

void StatScores::update(const at::Tensor& preds, const at::Tensor& target) {
  const torch::NoGradGuard no_grad;
  const auto [predicted, targets] = to_labels(rule_, preds, target);
  const int64_t samples = targets.numel();
  if (is_binary()) {
    const at::Tensor both = predicted.mul(targets).sum(), said = predicted.sum(),
                     are = targets.sum();
    accumulate(
        0, at::stack({both, said - both, samples - said - are + both, are - both}).unsqueeze(1));
    return;
  }
  const at::Tensor right = predicted.eq(targets);
  if (average_ == Average::micro) {
    const at::Tensor hits = right.sum(), misses = samples - hits;
    accumulate(0, at::stack({hits, misses, at::zeros_like(hits), misses}).unsqueeze(1));
    return;
  }
  const auto per_class = [&](const at::Tensor& labels) {
    return at::bincount(labels, /*weights=*/{}, rule_.num_classes);
  };
  const at::Tensor tp = per_class(targets.masked_select(right)), said = per_class(predicted),
                   are = per_class(targets);
  accumulate(0, at::stack({tp, said - tp, samples - said - are + tp, are - tp}));
}

at::Tensor StatScores::compute_from(const std::vector<at::Tensor>& states) const {
  const at::Tensor counts = states[0].to(at::kDouble);
  const Counts c{counts[0], counts[1], counts[2], counts[3]};
  at::Tensor scores = score(c);
  if (counts.sum().item<double>() == 0) scores = at::full_like(scores, NAN);
  if (average_ == Average::none) return scores;
  if (average_ == Average::micro) return scores.squeeze(0);
  const at::Tensor weights =
      average_ == Average::weighted ? c.tp + c.fn : (c.tp + c.fp + c.fn).gt(0).to(at::kDouble);
  return (scores * weights).sum() / weights.sum();
}

at::Tensor Accuracy::score(const Counts& c) const {
  return is_binary() ? safe_divide(c.tp + c.tn, c.tp + c.tn + c.fp + c.fn)
                     : safe_divide(c.tp, c.tp + c.fn);
}

at::Tensor Precision::score(const Counts& c) const {
  return safe_divide(c.tp, c.tp + c.fp);
}

at::Tensor Recall::score(const Counts& c) const {
  return safe_divide(c.tp, c.tp + c.fn);
}

at::Tensor F1Score::score(const Counts& c) const {
  return safe_divide(2 * c.tp, 2 * c.tp + c.fp + c.fn);
}

}  // namespace troika::metrics
