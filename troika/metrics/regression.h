// Metrics of predicted numbers. Sums are in float64.
#pragma once

#include <vector>

#include "troika/metrics/mean.h"

namespace troika::metrics {

// The mean of squared errors over all elements, or its root. Both tensors have the same shape.
class MeanSquaredError : public RatioMetric {
 public:
  explicit MeanSquaredError(bool squared = true) : squared_(squared) {}
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  double value_of(double ratio) const override;

 private:
  bool squared_;
};

class MeanAbsoluteError : public RatioMetric {
 public:
  void update(const at::Tensor& preds, const at::Tensor& target) override;
};

// 1 - (sum of squared errors) / (sum of squared differences of targets from their mean). NaN for
// fewer than 2 samples. If all targets are equal, 1 if all predictions equal them, otherwise 0.
class R2Score : public Metric {
 public:
  R2Score();
  // Both tensors are [samples] or [samples, 1].
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;
};

}  // namespace troika::metrics
