// Metrics that are a function of a sum divided by a count.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/metrics/metric.h"

namespace troika::metrics {

// A sum and a count in float64. NaN before the first sample.
class RatioMetric : public Metric {
 protected:
  RatioMetric();
  // Each argument has one element of any number type.
  void add(const at::Tensor& sum, const at::Tensor& count);
  void add(const at::Tensor& sum, double count);
  at::Tensor compute_from(const std::vector<at::Tensor>& states) const override;
  // The value of the metric for the ratio sum / count.
  virtual double value_of(double ratio) const { return ratio; }
};

// The weighted mean of numbers, for example the loss of an epoch.
class Mean : public RatioMetric {
 public:
  // `weight` has the shape of `value` or one that broadcasts to it.
  void update(const at::Tensor& value, const at::Tensor& weight) override;
  // Gives every element the same weight; for example, a batch's mean loss with its number of
  // samples.
  void update(const at::Tensor& value, double weight = 1);
  void update(double value, double weight = 1);
};

// exp of the mean negative log likelihood of the targets (the mean cross entropy in nats).
class Perplexity : public RatioMetric {
 public:
  explicit Perplexity(int64_t ignore_index = -100);
  // `preds` are logits [..., classes]; `target` [...] are class indices of type Long. Targets equal
  // to ignore_index do not count. Throws Error if the shapes do not match.
  void update(const at::Tensor& preds, const at::Tensor& target) override;

 protected:
  double value_of(double ratio) const override;

 private:
  int64_t ignore_index_;
};

}  // namespace troika::metrics
