// Metrics of classification that are ratios of counts of correct and wrong predictions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/metrics/labels.h"
#include "troika/metrics/metric.h"

namespace troika::metrics {

// The average over the classes of a multiclass task. `micro` counts all samples equally. `macro` is
// the mean over classes that occur as a target or prediction. `weighted` weights classes by their
// number of targets. `none` returns one value per class.
enum class Average { micro, macro, weighted, none };

struct StatScoresOptions {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;           // for multiclass; optional with micro
  Average average = Average::micro;  // for multiclass
  int64_t top_k = 1;                 // for multiclass
  double threshold = 0.5;            // for binary
  std::optional<int64_t> ignore_index = kIgnored;
};

// Counts true and false positives and negatives, in total or per class. NaN before the first
// sample; the value of a class whose denominator is 0 is 0.
class StatScores : public Metric {
 public:
  // Throws Error for options that are out of range or do not apply to the task.
  explicit StatScores(const StatScoresOptions& options);

  // `preds` are scores: multiclass [..., classes] (higher means likelier), binary [...]
  // probabilities; or labels in the shape of `target`. `target` is [...] class indices.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  // Float64 of shape [1], or [num_classes] if counted per class.
  struct Counts {
    at::Tensor tp, fp, tn, fn;
  };
  virtual at::Tensor score(const Counts& counts) const = 0;
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;
  bool is_binary() const { return rule_.task == ClassificationTask::binary; }

 private:
  LabelRule rule_;
  Average average_;
};

// The fraction of samples that are predicted correctly; per class, it is the recall.
class Accuracy : public StatScores {
 public:
  explicit Accuracy(const StatScoresOptions& options = {}) : StatScores(options) {}

 protected:
  at::Tensor score(const Counts& counts) const override;
};

// tp / (tp + fp).
class Precision : public StatScores {
 public:
  explicit Precision(const StatScoresOptions& options = {}) : StatScores(options) {}

 protected:
  at::Tensor score(const Counts& counts) const override;
};

// tp / (tp + fn).
class Recall : public StatScores {
 public:
  explicit Recall(const StatScoresOptions& options = {}) : StatScores(options) {}

 protected:
  at::Tensor score(const Counts& counts) const override;
};

// 2 tp / (2 tp + fp + fn), the harmonic mean of precision and recall.
class F1Score : public StatScores {
 public:
  explicit F1Score(const StatScoresOptions& options = {}) : StatScores(options) {}

 protected:
  at::Tensor score(const Counts& counts) const override;
};

}  // namespace troika::metrics
