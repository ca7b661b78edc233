#include "troika/parallel/parameter_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/norm.h"

namespace troika::parallel {

std::vector<optim::Parameter> trained_parameters(const torch::nn::Module& module) {
  std::vector<optim::Parameter> result;
  for (auto& item : nn::trained_parameters(module)) {
    result.push_back({std::move(item.first), std::move(item.second)});
  }
  return result;
}

std::vector<at::Tensor> ParameterStore::tensors() const {
  std::vector<at::Tensor> result;
  for (auto& parameter : parameters()) result.push_back(std::move(parameter.tensor));
  return result;
}

bool ParameterStore::has_shards() const {
  const auto all = parameters();
  return std::ranges::any_of(all, [this](const auto& parameter) {
    return parameter.box.has_value() || cut_of(parameter.name);
  });
}

std::vector<at::Tensor> ParameterStore::gradients() const {
  std::vector<at::Tensor> result;
  for (const auto& parameter : parameters()) {
    if (parameter.tensor.grad().defined()) result.push_back(parameter.tensor.grad());
  }
  return result;
}

double ParameterStore::squares_of_gradients() const {
  const auto sum = at::full({1}, sum_of_squares(gradients()), at::kDouble);
  reducer().sum(sum, "norm of gradients");
  return sum.item<double>();
}

double ParameterStore::clip_grad_norm(double max_norm) {
  const double norm = std::sqrt(squares_of_gradients());
  clip_to(gradients(), norm, max_norm);
  return norm;
}

double ParameterStore::clip_stage_grad_norm(double max_norm) {
  const double norm = std::sqrt(squares_of_stage_gradients());
  clip_to(gradients(), norm, max_norm);
  return norm;
}

double ParameterStore::squares_of_stage_gradients() const {
  const auto sum = at::full({1}, sum_of_squares(gradients()), at::kDouble);
  shards_reducer().sum(sum, "norm of a stage's gradients");
  return sum.item<double>();
}

}  // namespace troika::parallel
