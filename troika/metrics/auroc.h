#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/metrics/labels.h"
#include "troika/metrics/metric.h"
#include "troika/metrics/stat_scores.h"

namespace troika::metrics {

struct AurocOptions {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;           // for multiclass
  Average average = Average::macro;  // for multiclass: macro, weighted, or none (for each class)
  std::optional<int64_t> ignore_index = kIgnored;
};

// The area under the receiver operating characteristic curve: the probability that a sample of the
// class scores higher than a sample of another class, with ties counting half (the Mann-Whitney
// statistic divided by the number of pairs; Hanley and McNeil 1982). Exact: keeps and gathers the
// scores of all samples, 8 bytes for each sample and class, and 8 bytes for each target.
//
// A class to which all or no samples belong has the value NaN and is left out of averages. NaN
// scores make the result NaN.
class Auroc : public Metric {
 public:
  // Throws Error for options that are out of range or do not apply to the task.
  explicit Auroc(const AurocOptions& options);

  // Binary: `preds` [...] are any scores that are higher for class 1. Multiclass: `preds` [...,
  // classes] are probabilities, comparable between samples, not logits. `target` [...] has class
  // indices.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;

 private:
  AurocOptions options_;
};

}  // namespace troika::metrics
