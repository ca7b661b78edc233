// Metrics as sums, never as rates: every rank keeps two sums, the sums are added over batches,
// ranks and machines, and the division is done once at the end. So the result does not depend on
// how the samples were spread, and a rank without samples is legal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::train {

// Numerator and denominator in float64, on the device they were last added on: adding a tensor does
// not wait for the device, reading value() does.
class RatioState {
 public:
  // Float64 of shape {2}, a copy. States of several ranks may be added element by element.
  at::Tensor state() const;
  // Takes what state() gave, e.g. the sum of it over ranks.
  void set_state(const at::Tensor& state);
  // Back to no samples.
  void reset();

 protected:
  RatioState() = default;
  // `numerator` is one element of any number type.
  void add(const at::Tensor& numerator, const at::Tensor& denominator);
  // NaN before anything was counted.
  double ratio() const;

 private:
  at::Tensor sums_;  // undefined: nothing was added yet
};

// A mean of batch means, weighted by their sizes: the loss of an epoch.
class Mean : public RatioState {
 public:
  // `mean` over `count` samples: one element, any dtype and device.
  void update(const at::Tensor& mean, int64_t count);
  void update(double mean, int64_t count);
  // A sum over `count` samples, each one element of any number type.
  void update_sum(const at::Tensor& sum, const at::Tensor& count);
  // NaN before the first sample.
  double value() const { return ratio(); }
};

// The share of samples whose target is among the `top_k` largest logits, in [0, 1].
class Accuracy : public RatioState {
 public:
  // Targets that are not counted, as in torch.nn.functional.cross_entropy.
  static constexpr int64_t kIgnored = -100;

  explicit Accuracy(int64_t top_k = 1);

  // `logits` has shape [..., classes], `targets` [...] with class numbers in int64. Throws Error
  // when the shapes do not go together.
  void update(const at::Tensor& logits, const at::Tensor& targets);
  // NaN before the first sample.
  double value() const { return ratio(); }

 private:
  int64_t top_k_;
};

}  // namespace troika::train
