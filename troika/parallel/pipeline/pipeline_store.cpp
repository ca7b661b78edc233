// Pipeline's functions of a ParameterStore.
#include <fmt/format.h>

#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/norm.h"
#include "troika/parallel/pipeline/own_stages.h"
#include "troika/parallel/pipeline/pipeline.h"

namespace troika::parallel {

using layout::ActionKind;

// Replicas hold the same numbers, so only the first of them counts.
class Pipeline::OverStages : public GroupReducer {
 public:
  explicit OverStages(const Pipeline& pipeline) : pipeline_(pipeline) {
    for (const auto& entry : pipeline.model_->named_parameters()) {
      indices_.emplace(entry.key(), static_cast<int64_t>(indices_.size()));
    }
  }

  double squares_of_gradients() const {
    const auto squares = at::zeros({static_cast<int64_t>(indices_.size())}, at::kDouble);
    auto* of_parameters = squares.data_ptr<double>();
    for (const auto& parameter : pipeline_.parameters()) {
      const auto& gradient = parameter.tensor.grad();
      if (!gradient.defined() || !pipeline_.counts(parameter.name)) continue;
      of_parameters[indices_.at(parameter.name)] += sum_of_squares({gradient});
    }
    sum(squares, "norm of gradients");
    return std::accumulate(of_parameters, of_parameters + indices_.size(), 0.0);
  }

  void sum(const at::Tensor& numbers, std::string_view label) const override {
    inner().sum(numbers, label);
    if (pipeline_.place_.replica() > 0) numbers.zero_();
    pipeline_.world_.all_reduce(numbers, comm::ReduceOp::sum, {.label = label}).wait();
  }
  void max(const at::Tensor& numbers, std::string_view label) const override {
    inner().max(numbers, label);
    pipeline_.world_.all_reduce(numbers, comm::ReduceOp::max, {.label = label}).wait();
  }

 private:
  const GroupReducer& inner() const { return pipeline_.own_->any_exchange().reducer(); }

  const Pipeline& pipeline_;
  std::map<std::string, int64_t> indices_;  // of the model's parameters
};

Pipeline::~Pipeline() = default;

std::unique_ptr<Pipeline::OverStages> Pipeline::make_reducer() const {
  return std::make_unique<OverStages>(*this);
}

std::vector<optim::Parameter> Pipeline::parameters() const {
  return tensors_->tensor() ? tensors_->stepped() : own_->parameters();
}

std::vector<at::Tensor> Pipeline::gradients() const {
  std::vector<at::Tensor> result;
  own_->for_each_part([&](StagePart& part) {
    for (auto& gradient : part.exchange->gradients()) result.push_back(std::move(gradient));
  });
  return result;
}

double Pipeline::squares_of_gradients() const {
  return reducer_->squares_of_gradients();
}

double Pipeline::squares_of_stage_gradients() const {
  const auto* const tensor = tensors_->tensor();
  if (!tensor) return ParameterStore::squares_of_stage_gradients();
  std::vector<at::Tensor> counted;
  for (const auto& parameter : parameters()) {
    const auto& gradient = parameter.tensor.grad();
    if (gradient.defined() && tensor->counts(parameter.name)) counted.push_back(gradient);
  }
  const auto sum = at::full({1}, sum_of_squares(counted), at::kDouble);
  shards_reducer().sum(sum, "norm of a stage's gradients");
  tensors_->axis().all_reduce(sum, comm::ReduceOp::sum, {.label = "norm of a stage's gradients"});
  return sum.item<double>();
}

bool Pipeline::counts(const std::string& name) const {
  const auto* const tensor = tensors_->tensor();
  return !borrowed().contains(name) && (!tensor || tensor->counts(name));
}

const ParameterCut* Pipeline::cut_of(const std::string& name) const {
  const auto* const tensor = tensors_->tensor();
  return tensor ? tensor->cut_of(name) : nullptr;
}

void Pipeline::complete_sums(const at::Tensor& sums) const {
  ParameterStore::complete_sums(sums);
  if (const auto* const tensor = tensors_->tensor()) tensor->complete_sums(parameters(), sums);
}

const std::set<std::string>& Pipeline::borrowed() const {
  return own_->tied().borrowed();
}

bool Pipeline::shards_parameters() const {
  return own_->any_exchange().shards_parameters();
}

const GroupReducer& Pipeline::reducer() const {
  return *reducer_;
}

const GroupReducer& Pipeline::shards_reducer() const {
  return own_->any_exchange().reducer();
}

std::vector<Pipeline::OwnExchange> Pipeline::exchanges() const {
  std::vector<OwnExchange> result;
  own_->for_each_part([&](StagePart& part) {
    result.push_back({part.name, *part.module, *part.exchange});
  });
  return result;
}

std::unique_ptr<optim::FlatOptimizer> Pipeline::own_optimizer() {
  std::unique_ptr<optim::FlatOptimizer> own;
  own_->for_each_part([&](StagePart& part) {
    if (auto optimizer = part.exchange->own_optimizer()) own = std::move(optimizer);
  });
  return own;
}

void Pipeline::fetch_states() {
  own_->for_each_part([](StagePart& part) { part.exchange->fetch_states(); });
}

std::vector<std::pair<std::string, double>> Pipeline::take_statistics() {
  std::vector<std::pair<std::string, double>> numbers;
  own_->for_each_part([&](StagePart& part) {
    if (numbers.empty()) numbers = part.exchange->take_statistics();
  });
  return numbers;
}

void Pipeline::step_by(const std::function<void()>& update) {
  if (asynchronous_) begin_asynchronous_step();
  const auto actions = place_.actions(schedule_);  // spans refer to them
  std::deque<ActionTimes::ActionSpan> spans;
  for (const auto& action : actions) {
    if (action.kind == ActionKind::step) spans.emplace_back(times_, action);
  }
  // Each exchange updates its own parameters in the module after the single update.
  std::function<void()> step = update;
  own_->for_each_part([&](StagePart& part) {
    step = [exchange = part.exchange.get(), inner = std::move(step)] { exchange->step_by(inner); };
  });
  step();
  tensors_->drop_gradients();
}

void Pipeline::spread_parameters() {
  own_->for_each_part([](StagePart& part) { part.exchange->spread_parameters(); });
  if (tensors_->is_whole()) make_whole();
}

void Pipeline::gather_parameters() {
  own_->for_each_part([](StagePart& part) { part.exchange->gather_parameters(); });
}

void Pipeline::synchronize_replicas() {
  own_->for_each_part([](StagePart& part) { part.exchange->synchronize_replicas(); });
}

void Pipeline::make_whole() {
  synchronize_replicas();
  tensors_->make_whole();
}

}  // namespace troika::parallel
