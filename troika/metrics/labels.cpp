#include "troika/metrics/labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::metrics {

namespace {

[[noreturn]] void refuse_batch(std::string what, std::string got, std::string expected,
                               std::string hint = {}) {
  throw Error("metrics", ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

std::string show_tensor(const at::Tensor& tensor) {
  return fmt::format("[{}] of {}", fmt::join(tensor.sizes(), ", "),
                     c10::toString(tensor.scalar_type()));
}

[[noreturn]] void refuse_pair(const at::Tensor& preds, const at::Tensor& target,
                              const std::string& expected) {
  refuse_batch("predictions and targets of a metric do not go together",
               fmt::format("{} and {}", show_tensor(preds), show_tensor(target)), expected);
}

bool holds_labels(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

void require_labels(const at::Tensor& labels, int64_t classes, const std::string& what,
                    std::optional<int64_t> ignore_index) {
  if (labels.numel() == 0) return;
  const int64_t least = labels.min().item<int64_t>(), most = labels.max().item<int64_t>();
  if (least >= 0 && most < classes) return;
  refuse_batch(fmt::format("{} of a metric is not a class number", what),
               std::to_string(least < 0 ? least : most),
               fmt::format("0 to {}{}", classes - 1,
                           ignore_index ? fmt::format(", or {} for ignored", *ignore_index) : ""));
}

// Flat tensors [samples] or [samples, classes] without ignored samples.
ScoredSamples counted(const at::Tensor& preds, const at::Tensor& target, int64_t classes,
                      std::optional<int64_t> ignore_index) {
  ScoredSamples samples{preds, target.to(preds.device(), at::kLong)};
  if (ignore_index) {
    const at::Tensor kept = samples.target.ne(*ignore_index).nonzero().squeeze(1);
    if (kept.numel() < samples.target.numel()) {
      samples = {samples.preds.index_select(0, kept), samples.target.index_select(0, kept)};
    }
  }
  require_labels(samples.target, classes, "target", ignore_index);
  return samples;
}

}  // namespace

ScoredSamples multiclass_samples(const at::Tensor& preds, const at::Tensor& target,
                                 int64_t num_classes, std::optional<int64_t> ignore_index) {
  const bool fit = preds.dim() >= 1 && preds.size(-1) > 0 && preds.is_floating_point() &&
                   holds_labels(target) && (num_classes == 0 || preds.size(-1) == num_classes) &&
                   preds.sizes().slice(0, static_cast<size_t>(preds.dim() - 1)) == target.sizes();
  if (!fit) {
    refuse_pair(preds, target,
                fmt::format("[..., {}] of a floating-point type and [...] of Long",
                            num_classes > 0 ? std::to_string(num_classes) : "classes"));
  }
  return counted(preds.detach().reshape({-1, preds.size(-1)}), target.reshape({-1}), preds.size(-1),
                 ignore_index);
}

ScoredSamples binary_samples(const at::Tensor& preds, const at::Tensor& target,
                             std::optional<int64_t> ignore_index) {
  if (preds.sizes() != target.sizes() || !holds_labels(target)) {
    refuse_pair(preds, target, "[...] and [...] of Long");
  }
  return counted(preds.detach().reshape({-1}), target.reshape({-1}), 2, ignore_index);
}

void require_probabilities(const at::Tensor& preds, const std::string& hint) {
  const at::Tensor outside = preds.masked_select(preds.lt(0).logical_or(preds.gt(1)));
  if (outside.numel() == 0) return;
  refuse_batch("prediction of a metric is not a probability",
               fmt::format("{}", outside[0].item<double>()), "a number from 0 to 1", hint);
}

void require_valid(const LabelRule& rule, bool needs_classes) {
  const auto require = [](bool holds, const std::string& what, const std::string& got,
                          const std::string& expected) {
    if (!holds) refuse_batch("bad " + what + " of a metric", got, expected);
  };
  const std::string classes = std::to_string(rule.num_classes), k = std::to_string(rule.top_k);
  require(rule.top_k >= 1, "top_k", k, "at least 1");
  if (rule.task == ClassificationTask::binary) {
    require(rule.num_classes == 0, "num_classes", classes, "none for a binary task");
    require(rule.top_k == 1, "top_k", k, "none for a binary task");
    require(rule.threshold >= 0 && rule.threshold <= 1, "threshold",
            fmt::format("{}", rule.threshold), "a number from 0 to 1");
  } else {
    require(rule.threshold == 0.5, "threshold", fmt::format("{}", rule.threshold),
            "none for a multiclass task");
    require(rule.num_classes >= (needs_classes ? 2 : 0), "num_classes", classes,
            needs_classes ? "at least 2 for what is counted class by class" : "at least 0");
  }
}

LabelPairs to_labels(const LabelRule& rule, const at::Tensor& preds, const at::Tensor& target) {
  const bool binary = rule.task == ClassificationTask::binary;
  if (holds_labels(preds)) {
    if (preds.sizes() != target.sizes() || !holds_labels(target) || rule.top_k > 1) {
      refuse_pair(preds, target,
                  rule.top_k > 1 ? "scores, as top_k is more than 1"
                                 : "scores, or labels in the shape of the targets");
    }
    // Without a number of classes, any non-negative label is valid.
    const int64_t classes = binary                 ? 2
                            : rule.num_classes > 0 ? rule.num_classes
                                                   : std::numeric_limits<int64_t>::max();
    const auto samples =
        counted(preds.reshape({-1}), target.reshape({-1}), classes, rule.ignore_index);
    require_labels(samples.preds, classes, "prediction", std::nullopt);
    return {samples.preds.to(at::kLong), samples.target};
  }
  if (binary) {
    const auto samples = binary_samples(preds, target, rule.ignore_index);
    require_probabilities(samples.preds, "apply sigmoid to logits");
    return {samples.preds.gt(rule.threshold).to(at::kLong), samples.target};
  }
  const auto samples = multiclass_samples(preds, target, rule.num_classes, rule.ignore_index);
  const at::Tensor best = samples.preds.argmax(1);
  const int64_t k = std::min(rule.top_k, preds.size(-1));
  if (k == 1) return {best, samples.target};
  const at::Tensor candidates = std::get<1>(samples.preds.topk(k, 1, true, /*sorted=*/false));
  const at::Tensor right = candidates.eq(samples.target.unsqueeze(1)).any(1);
  return {at::where(right, samples.target, best), samples.target};
}

}  // namespace troika::metrics
