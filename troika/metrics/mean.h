// Metrics that are a function of one sum over one count.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/metrics/metric.h"

namespace troika::metrics {

// A sum and a count in float64. NaN before anything was counted.
class RatioMetric : public Metric {
 protected:
  RatioMetric();
  // One element of any number type each.
  void add(const at::Tensor& sum, const at::Tensor& count);
  void add(const at::Tensor& sum, double count);
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;
  // The value of the metric for a sum / count.
  virtual double value_of(double ratio) const { return ratio; }
};

// The weighted mean of numbers: the loss of an epoch.
class Mean : public RatioMetric {
 public:
  // `weight` has the shape of `value`, or one that is broadcast to it.
  void update(const at::Tensor& value, const at::Tensor& weight) override;
  // Every element with the same weight, e.g. a batch's mean with its number of samples.
  void update(const at::Tensor& value, double weight = 1);
  void update(double value, double weight = 1);
};

// exp of the mean negative log likelihood of targets, i.e. of the mean cross entropy in nats.
class Perplexity : public RatioMetric {
 public:
  explicit Perplexity(int64_t ignore_index = -100);
  // `preds` are logits [..., classes], `target` [...] class numbers of Long; those equal to
  // ignore_index do not count. Throws Error when the shapes do not go together.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  double value_of(double ratio) const override;

 private:
  int64_t ignore_index_;
};

}  // namespace troika::metrics
