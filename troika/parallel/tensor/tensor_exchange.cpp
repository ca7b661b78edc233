#include "troika/parallel/tensor/tensor_exchange.h"

#include <algorithm>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

void TensorExchange::OverAxis::sum(const at::Tensor& numbers, std::string_view label) const {
  axis_.all_reduce(numbers, comm::ReduceOp::sum, {.label = label}).wait();
}

void TensorExchange::OverAxis::max(const at::Tensor& numbers, std::string_view label) const {
  axis_.all_reduce(numbers, comm::ReduceOp::max, {.label = label}).wait();
}

TensorExchange::TensorExchange(nn::Model& model, const comm::Group& axis, const SplitTable& table,
                               const TensorOptions& options, const MakeReplicas& make_replicas)
    : axis_(axis),
      over_axis_(axis),
      tensor_(model, axis, table, options),
      replicas_(make_replicas()) {
  for (const auto& [cut, parameter] : tensor_.parameters()) {
    cuts_.emplace(cut.name, &cut);
    if (!parameter.requires_grad()) continue;
    shards_.push_back({cut.name, parameter.detach()});
    trained_.push_back(parameter);
  }
}

const ParameterCut* TensorExchange::cut_of(const std::string& name) const {
  const auto found = cuts_.find(name);
  return found == cuts_.end() || found->second->is_whole() ? nullptr : found->second;
}

bool TensorExchange::counts(const std::string& name) const {
  const auto found = cuts_.find(name);
  return found == cuts_.end() || axis_.rank() % found->second->copies == 0;
}

void TensorExchange::complete_sums(const at::Tensor& sums) const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!counts(shards_[i].name)) sums.select(0, static_cast<int64_t>(i)).zero_();
  }
  over_axis_.sum(sums, "norms of parameters");
}

// Replicas sum a bucket in pieces, each in an order of its own. If shards differ in size, the same
// parameter lies in another piece on another rank of the axis. GPUs add in no fixed order.
bool TensorExchange::rounds_apart() const {
  const bool is_uneven = std::ranges::any_of(cuts_, [this](const auto& entry) {
    const auto& cut = *entry.second;
    return cut.split == Split::vocabulary && cut.shape[0] % axis_.size() != 0;
  });
  return is_uneven || (!trained_.empty() && !trained_.front().is_cpu());
}

void TensorExchange::finish_backward() {
  replicas_->finish_backward();
  tensor_.finish_backward();
  if (rounds_apart()) {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const bool all_hold_it = cuts_.at(shards_[i].name)->copies == axis_.size();
      if (all_hold_it && trained_[i].grad().defined()) gradients.push_back(trained_[i].grad());
    }
    const at::NoGradGuard no_grad;
    broadcast_packed(axis_, gradients, 0, "tensor axis: gradients of whole parameters");
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].tensor.mutable_grad() = trained_[i].grad();
  }
}

void TensorExchange::step_by(const std::function<void()>& update) {
  replicas_->step_by(update);
  // Without replicas, the gradients' memory is freed when the module drops them.
  for (auto& shard : shards_) shard.tensor.mutable_grad().reset();
}

void TensorExchange::make_whole() {
  synchronize_replicas();
  if (std::exchange(is_whole_, true)) return;
  tensor_.make_whole();
}

}  // namespace troika::parallel
