// Metrics of classification that are ratios of counts of right and wrong predictions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/metrics/labels.h"
#include "troika/metrics/metric.h"

namespace troika::metrics {

// Over the classes of a multiclass task. `micro` counts all samples alike; `macro` is the mean over
// classes that occur as target or prediction; `weighted` weighs classes by their targets; `none`
// gives one value a class.
enum class Average { micro, macro, weighted, none };

struct StatScoresOptions {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;           // of multiclass; may be left out with micro
  Average average = Average::micro;  // of multiclass
  int64_t top_k = 1;                 // of multiclass
  double threshold = 0.5;            // of binary
  std::optional<int64_t> ignore_index = kIgnored;
};

// True and false positives and negatives, in total or class by class. NaN before the first sample;
// a class with nothing to divide by has the value 0.
class StatScores : public Metric {
 public:
  // Throws Error for options out of range or without use for the task.
  explicit StatScores(const StatScoresOptions& options);

  // `preds` are scores: of multiclass [..., classes] (the larger the likelier), of binary [...]
  // probabilities; or labels in the shape of `target`, which is [...] class numbers.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  // Float64 of shape [1], or [num_classes] when counted class by class.
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

// The share of samples that are predicted right; class by class it is the recall.
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
