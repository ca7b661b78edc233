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
  int64_t num_classes = 0;           // of multiclass
  Average average = Average::macro;  // of multiclass: macro, weighted or none, each class by itself
  std::optional<int64_t> ignore_index = kIgnored;
};

// The area under the receiver operating characteristic: the probability that a sample of the class
// scores higher than one of another class, equal scores counting half (the Mann-Whitney statistic
// over the number of pairs; Hanley and McNeil 1982). Exact, from the scores of all samples, which
// are kept and gathered: 8 bytes a sample and class, and 8 for its target.
//
// A class that all samples or none are of has no value: NaN, and left out of averages. NaN scores
// make NaN.
class Auroc : public Metric {
 public:
  // Throws Error for options out of range or without use for the task.
  explicit Auroc(const AurocOptions& options);

  // Binary: `preds` [...] are any scores that are higher for class 1. Multiclass: [..., classes]
  // probabilities, comparable between samples; logits are not. `target` [...] are class numbers.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;

 private:
  AurocOptions options_;
};

}  // namespace troika::metrics
