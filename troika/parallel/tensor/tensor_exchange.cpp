#include "troika/parallel/tensor/tensor_exchange.h"

#include <utility>

#include "troika/compat/torch.h"

namespace troika::parallel {

void TensorExchange::OverAxis::sum(const at::Tensor& numbers, std::string_view label) const {
  axis_.all_reduce(numbers, comm::ReduceOp::sum, {.label = label}).wait();
}

void TensorExchange::OverAxis::max(const at::Tensor& numbers, std::string_view label) const {
  axis_.all_reduce(numbers, comm::ReduceOp::max, {.label = label}).wait();
}

TensorExchange::TensorExchange(nn::Model& model, const comm::Group& axis, const SplitTable& table,
                               const TensorOptions& options, const MakeReplicas& make_replicas)
    : over_axis_(axis), tensor_(model, axis, table, options), replicas_(make_replicas()) {
  for (const auto& [cut, parameter] : tensor_.parameters()) {
    if (!parameter.requires_grad()) continue;
    shards_.push_back({cut.name, parameter.detach()});
    trained_.push_back(parameter);
  }
}

void TensorExchange::finish_backward() {
  replicas_->finish_backward();
  tensor_.finish_backward();
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
