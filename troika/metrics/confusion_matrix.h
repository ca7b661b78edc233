#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/metrics/labels.h"
#include "troika/metrics/metric.h"

namespace troika::metrics {

// The divisor of the counts of a confusion matrix: none, the targets of their row, the
// predictions of their column, or all samples. Nothing over nothing is 0.
enum class Normalize { none, target, prediction, all };

struct ConfusionMatrixOptions {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;  // of multiclass
  Normalize normalize = Normalize::none;
  double threshold = 0.5;  // of binary
  std::optional<int64_t> ignore_index = kIgnored;
};

// [classes, classes]: row i, column j counts the samples of class i that were predicted to be of
// class j. Of Long, of Double when normalised. A binary task has 2 classes.
class ConfusionMatrix : public Metric {
 public:
  // Throws Error for options out of range or without use for the task.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);

  // As StatScores::update.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;

 private:
  LabelRule rule_;
  int64_t classes_;
  Normalize normalize_;
};

}  // namespace troika::metrics
