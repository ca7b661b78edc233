#include "troika/parallel/diloco/outer_fragments.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/parameter_store.h"

namespace troika::parallel {

namespace {

constexpr std::string_view kAnchor = "anchor.";
constexpr std::string_view kOwn = "own.";
constexpr std::string_view kOuter = "outer.";

std::vector<std::vector<size_t>> cut(const std::vector<optim::Parameter>& parameters,
                                     int64_t count) {
  if (count < 1 || count > static_cast<int64_t>(parameters.size())) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "fragments of a model",
                 .got = std::to_string(count),
                 .expected = "from 1 to the " + std::to_string(parameters.size()) +
                             " trained parameters, which are not cut"});
  }
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto size_of = [&](size_t i) { return parameters[i].tensor.numel(); };
  std::ranges::stable_sort(order, std::ranges::greater(), size_of);
  std::vector<std::vector<size_t>> fragments(static_cast<size_t>(count));
  std::vector<int64_t> sizes(fragments.size());
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(sizes) - sizes.begin();
    fragments[static_cast<size_t>(least)].push_back(i);
    sizes[static_cast<size_t>(least)] += size_of(i);
  }
  for (auto& fragment : fragments) std::ranges::sort(fragment);
  return fragments;
}

}  // namespace

OuterFragments::OuterFragments(const torch::nn::Module& module, const OuterOptions& options)
    : parameters_(trained_parameters(module)),
      fragments_(cut(parameters_, options.fragments)),
      mixing_(options.mixing) {
  const auto value = [](const std::string& name, const at::Tensor& tensor) {
    return Value{name, tensor.detach(), tensor.detach().clone()};
  };
  std::vector<optim::Parameter> outer;
  for (const auto& [name, tensor] : nn::trained_parameters(module)) {
    weights_.push_back(value(name, tensor));
    outer.push_back({name, weights_.back().outer});
  }
  for (const auto& [name, buffer] : nn::named_buffers(module)) {
    if (buffer.is_floating_point()) buffers_.push_back(value(name, buffer));
  }
  optimizer_ = optim::make_optimizer(std::move(outer), {.name = "sgd",
                                                        .lr = options.lr,
                                                        .momentum = options.momentum,
                                                        .nesterov = options.momentum > 0});
}

std::vector<at::Tensor> OuterFragments::changes(int64_t fragment) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const size_t i : fragments_.at(static_cast<size_t>(fragment))) {
    result.push_back(weights_[i].outer - weights_[i].module);
  }
  return result;
}

std::vector<at::Tensor> OuterFragments::buffers() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const auto& buffer : buffers_) result.push_back(buffer.module.clone());
  return result;
}

void OuterFragments::step(int64_t fragment, const std::vector<at::Tensor>& changes,
                          const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  const auto& own = fragments_.at(static_cast<size_t>(fragment));
  // The optimizer skips parameters without a gradient.
  for (size_t k = 0; k < own.size(); ++k) weights_[own[k]].outer.mutable_grad() = changes[k];
  optimizer_->step();
  for (const size_t i : own) {
    auto& [name, module, outer] = weights_[i];
    outer.mutable_grad().reset();
    if (mixing_ == 0) {
      module.copy_(outer);
    } else {
      module.mul_(mixing_).add_(outer, 1 - mixing_);
    }
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].outer.copy_(buffers[i]);
    buffers_[i].module.copy_(buffers[i]);
  }
}

void OuterFragments::show() {
  if (is_shown()) return;
  const at::NoGradGuard no_grad;
  for (const auto* values : {&weights_, &buffers_}) {
    for (const auto& [name, module, outer] : *values) {
      own_.push_back(module.clone());
      module.copy_(outer);
    }
  }
}

void OuterFragments::hide() {
  if (!is_shown()) return;
  const at::NoGradGuard no_grad;
  size_t at = 0;
  for (const auto* values : {&weights_, &buffers_}) {
    for (const auto& value : *values) value.module.copy_(own_[at++]);
  }
  own_.clear();
}

void OuterFragments::adopt() {
  show();
  own_.clear();
}

optim::NamedTensors OuterFragments::state() const {
  optim::NamedTensors result;
  size_t at = 0;
  for (const auto* values : {&weights_, &buffers_}) {
    for (const auto& [name, module, outer] : *values) {
      if (is_shown()) {
        result.emplace_back(std::string(kOwn) + name, own_[at++]);
      } else {
        result.emplace_back(std::string(kAnchor) + name, outer);
      }
    }
  }
  for (const auto& [name, tensor] : optimizer_->state()) {
    result.emplace_back(std::string(kOuter) + name, tensor);
  }
  return result;
}

std::string OuterFragments::load_state(std::map<std::string, at::Tensor>& state) {
  const bool was_shown = state.contains(std::string(kOwn) + weights_.front().name);
  std::vector<at::Tensor> taken;
  for (const auto* values : {&weights_, &buffers_}) {
    for (const auto& value : *values) {
      const auto name = std::string(was_shown ? kOwn : kAnchor) + value.name;
      const auto found = state.extract(name);
      if (found.empty()) return "no " + name;
      if (found.mapped().sizes() != value.module.sizes()) return name;
      taken.push_back(found.mapped());
    }
  }
  optim::NamedTensors of_optimizer;
  for (const auto& [name, tensor] : optimizer_->state()) {
    const auto found = state.extract(std::string(kOuter) + name);
    if (found.empty()) return "no " + std::string(kOuter) + name;
    of_optimizer.emplace_back(name, found.mapped());
  }
  optimizer_->load_state(of_optimizer);
  const at::NoGradGuard no_grad;
  own_.clear();
  size_t at = 0;
  for (const auto* values : {&weights_, &buffers_}) {
    for (const auto& value : *values) {
      const auto& tensor = taken[at++];
      value.outer.copy_(was_shown ? value.module : tensor);
      if (was_shown) own_.push_back(tensor.to(value.module.scalar_type()).clone());
    }
  }
  return {};
}

std::vector<std::string> OuterFragments::change_names(int64_t fragment) const {
  std::vector<std::string> result;
  for (const size_t i : fragments_.at(static_cast<size_t>(fragment))) {
    result.push_back(weights_[i].name);
  }
  return result;
}

std::vector<std::string> OuterFragments::buffer_names() const {
  std::vector<std::string> result;
  for (const auto& buffer : buffers_) result.push_back(buffer.name);
  return result;
}

}  // namespace troika::parallel
