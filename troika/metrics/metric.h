// Metrics over samples that are spread over batches and ranks. What is added up over ranks are
// states (counts, sums, extremes, lists of samples), never rates: the value is computed once, from
// the states of all, so it does not depend on how the samples were spread, and a rank without
// samples is legal. Semantics and names of arguments are those of torchmetrics.
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

  // Adds a batch. What the two tensors are is said by each metric; they may be on any device.
  virtual void update(const at::Tensor& preds, const at::Tensor& target) = 0;

  // The value over this rank's batches since the last reset(), on the host.
  at::Tensor compute() const;
  // The value over all ranks' batches: collective, blocking, the same bits on all ranks. The
  // states of this rank stay its own, so more batches may follow. `label` names the calls in
  // errors.
  at::Tensor compute(const comm::Group& replicas, std::string_view label) const;
  // The same for metrics whose value is one number.
  double value() const;
  double value(const comm::Group& replicas, std::string_view label) const;
  // The same; nothing where no rank has added anything.
  std::optional<double> value_if_any(const comm::Group& replicas, std::string_view label) const;

  // Back to no samples.
  void reset();

  // The states of this rank since the last reset(), reduced, on the host: for a checkpoint.
  // Copies.
  std::vector<at::Tensor> state() const;
  // Replaces the states of this rank by those that state() gave.
  void load_state(const std::vector<at::Tensor>& state);

 protected:
  // How states of batches and of ranks become one: element by element, or (cat) rows after rows,
  // any number on each rank, in the order of ranks.
  enum class Reduction { sum, min, max, cat };
  struct State {
    Reduction reduction;
    at::Tensor initial;  // what no samples give, on the host; of cat [0, ...]
  };

  explicit Metric(std::vector<State> states);
  // Reduces `value`, of the shape of state number `index`, into it, in the state's dtype and on the
  // value's device; does not wait for the device.
  void accumulate(size_t index, const at::Tensor& value);
  // The value from reduced states, in the order they were declared, contiguous and on the host.
  virtual at::Tensor compute_from(const std::vector<at::Tensor>& states) const = 0;

 private:
  // The states of all ranks' batches. Collective.
  std::vector<at::Tensor> reduced(const comm::Group& replicas, std::string_view label) const;

  std::vector<State> states_;
  // Per state what was accumulated: nothing, one tensor, or of cat one per call.
  std::vector<std::vector<at::Tensor>> values_;
};

}  // namespace troika::metrics
