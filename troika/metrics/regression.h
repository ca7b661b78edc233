// Metrics of numbers that are predicted. Sums are in float64.
#pragma once

#include <vector>

#include "troika/metrics/mean.h"

namespace troika::metrics {

// Over all elements, in any shape that both tensors have. The mean of squares, or its root.
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
// fewer than 2 samples; of targets that are all equal 1 when the predictions are too, else 0.
class R2Score : public Metric {
 public:
  R2Score();
  // Both [samples] or [samples, 1].
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;
};

}  // namespace troika::metrics
