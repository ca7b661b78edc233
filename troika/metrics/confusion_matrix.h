#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/metrics/labels.h"
#include "troika/metrics/metric.h"

namespace troika::metrics {

// The divisor of the counts: none, the number of targets of the row, the number of predictions of
// the column, or the number of samples. 0 / 0 is 0.
enum class Normalize { none, target, prediction, all };

struct ConfusionMatrixOptions {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;  // for multiclass
  Normalize normalize = Normalize::none;
  double threshold = 0.5;  // for binary
  std::optional<int64_t> ignore_index = kIgnored;
};

// [classes, classes]: row i, column j counts the samples of class i that were predicted as class j.
// Long, or Double if normalized. A binary task has 2 classes.
class ConfusionMatrix : public Metric {
 public:
  // Throws Error for options that are out of range or do not apply to the task.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);

  // Takes the arguments of StatScores::update().
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;

 private:
  LabelRule rule_;
  int64_t classes_;
  Normalize normalize_;
};

}  // namespace troika::metrics
