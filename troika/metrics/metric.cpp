#include "troika/metrics/metric.h"

#include <numeric>
#include <string>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::metrics {

namespace {

// Concatenates the rows of all ranks.
at::Tensor gather_rows(const comm::Group& replicas, const at::Tensor& rows,
                       std::string_view label) {
  const auto counts = at::empty({replicas.size()}, at::kLong);
  replicas.all_gather(counts, at::full({1}, rows.size(0), at::kLong), {}, {.label = label});
  const std::vector<int64_t> splits(counts.data_ptr<int64_t>(),
                                    counts.data_ptr<int64_t>() + counts.numel());
  auto shape = rows.sizes().vec();
  shape[0] = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const auto all = at::empty(shape, rows.options());
  replicas.all_gather(all, rows, splits, {.label = label});
  return all;
}

double one_number(const at::Tensor& value) {
  TROIKA_CHECK(value.numel() == 1, "this metric has several values; use compute()");
  return value.item<double>();
}

}  // namespace

Metric::Metric(std::vector<State> states) : states_(std::move(states)), values_(states_.size()) {}

void Metric::accumulate(size_t index, const at::Tensor& value) {
  const torch::NoGradGuard no_grad;
  const State& state = states_.at(index);
  auto& held = values_[index];
  // Copies, because the caller may overwrite its batch.
  const at::Tensor added = value.detach().to(state.initial.scalar_type(), /*non_blocking=*/false,
                                             /*copy=*/true);
  if (held.empty() || state.reduction == Reduction::cat) {
    const bool fits = state.reduction == Reduction::cat
                          ? added.dim() == state.initial.dim() &&
                                added.sizes().slice(1) == state.initial.sizes().slice(1)
                          : added.sizes() == state.initial.sizes();
    TROIKA_CHECK(fits, "what is added to a state of a metric must have its shape");
    held.push_back(added);
    return;
  }
  const at::Tensor before = held.front().to(added.device());
  // Not in place, because a copy of this metric shares its tensors.
  held.front() = state.reduction == Reduction::sum   ? before + added
                 : state.reduction == Reduction::min ? at::minimum(before, added)
                                                     : at::maximum(before, added);
}

// On the host, because a rank without samples cannot know the device of the other ranks.
std::vector<at::Tensor> Metric::state() const {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < states_.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const auto& value : values_[i]) parts.push_back(value.to(at::kCPU));
    if (parts.empty()) parts.push_back(states_[i].initial);
    // at::cat copies, so reducing the result does not change the state.
    result.push_back(states_[i].reduction == Reduction::cat
                         ? at::cat(parts)
                         : parts.front().clone(at::MemoryFormat::Contiguous));
  }
  return result;
}

at::Tensor Metric::compute() const {
  const torch::NoGradGuard no_grad;
  return compute_from(state());
}

std::vector<at::Tensor> Metric::reduced(const comm::Group& replicas, std::string_view label) const {
  const torch::NoGradGuard no_grad;
  auto states = state();
  for (size_t i = 0; i < states.size(); ++i) {
    if (states_[i].reduction == Reduction::cat) {
      states[i] = gather_rows(replicas, states[i], label);
      continue;
    }
    const auto op = states_[i].reduction == Reduction::sum   ? comm::ReduceOp::sum
                    : states_[i].reduction == Reduction::min ? comm::ReduceOp::min
                                                             : comm::ReduceOp::max;
    replicas.all_reduce(states[i], op, {.label = label});
  }
  return states;
}

at::Tensor Metric::compute(const comm::Group& replicas, std::string_view label) const {
  const torch::NoGradGuard no_grad;
  return compute_from(reduced(replicas, label));
}

double Metric::value() const {
  return one_number(compute());
}

double Metric::value(const comm::Group& replicas, std::string_view label) const {
  return one_number(compute(replicas, label));
}

std::optional<double> Metric::value_if_any(const comm::Group& replicas,
                                           std::string_view label) const {
  const torch::NoGradGuard no_grad;
  const auto states = reduced(replicas, label);
  bool is_empty = true;
  for (size_t i = 0; i < states.size(); ++i) {
    is_empty = is_empty && at::equal(states[i], states_[i].initial);
  }
  if (is_empty) return {};
  return one_number(compute_from(states));
}

void Metric::reset() {
  for (auto& held : values_) held.clear();
}

void Metric::load_state(const std::vector<at::Tensor>& state) {
  TROIKA_CHECK(state.size() == states_.size(), "a metric loads as many states as it has");
  reset();
  for (size_t i = 0; i < state.size(); ++i) accumulate(i, state[i]);
}

}  // namespace troika::metrics
