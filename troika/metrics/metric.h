// Metrics over samples that are spread over batches and ranks. Ranks reduce states (counts, sums,
// extremes, lists of samples), not values. The value is computed once from the reduced states, so
// it does not depend on the distribution of samples, and ranks may have no samples. Semantics and
// argument names follow torchmetrics.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "troika/comm/group.h"

namespace troika::metrics {

class Metric {
 public:
  virtual ~Metric() = default;

  // Adds a batch. Each metric defines the two tensors; they may be on any device.
  virtual void update(const at::Tensor& preds, const at::Tensor& target) = 0;

  // The value over this rank's batches since the last reset(), on the host.
  at::Tensor compute() const;
  // The value over all ranks' batches. Collective, blocking, bitwise the same on all ranks. Does
  // not change this rank's states, so more batches may follow. `label` names the collectives in
  // errors.
  at::Tensor compute(const comm::Group& replicas, std::string_view label) const;
  // The same for metrics whose value is one number.
  double value() const;
  double value(const comm::Group& replicas, std::string_view label) const;
  // The same; empty if no rank has added samples.
  std::optional<double> value_if_any(const comm::Group& replicas, std::string_view label) const;

  // Resets the states to those without samples.
  void reset();

  // Returns a reduced copy of this rank's states since the last reset(), on the host, for a
  // checkpoint.
  std::vector<at::Tensor> state() const;
  // Replaces this rank's states by a result of state().
  void load_state(const std::vector<at::Tensor>& state);

 protected:
  // The reduction of states over batches and ranks: elementwise, or (cat) concatenation of rows in
  // rank order, with any number of rows on each rank.
  enum class Reduction { sum, min, max, cat };
  struct State {
    Reduction reduction;
    at::Tensor initial;  // the state without samples, on the host; [0, ...] for cat
  };

  explicit Metric(std::vector<State> states);
  // Reduces `value` into state number `index`, in the state's dtype and on the value's device.
  // `value` has the state's shape. Does not wait for the device.
  void accumulate(size_t index, const at::Tensor& value);
  // Computes the value from reduced states, in the order of declaration, contiguous and on the
  // host.
  virtual at::Tensor compute_from(const std::vector<at::Tensor>& states) const = 0;

 private:
  // The states over all ranks' batches. Collective.
  std::vector<at::Tensor> reduced(const comm::Group& replicas, std::string_view label) const;

  std::vector<State> states_;
  // For each state, the accumulated values: none or one tensor; for cat, one for each call.
  std::vector<std::vector<at::Tensor>> values_;
};

}  // namespace troika::metrics
