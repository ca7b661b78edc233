#include "troika/train/callbacks/weight_average.h"

#include <map>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/exchange.h"
#include "troika/train/fit_context.h"
#include "troika/train/optimization.h"

namespace troika::train {

namespace {

constexpr const char* kUpdates = "updates";
constexpr const char* kAverage = ".average";

}  // namespace

void WeightAverage::attach(const FitContext& context) {
  exchange_ = context.exchange;
  const auto in_module = exchange_->parameters(context.task.module());
  const auto& stepped = context.optimization->parameters();
  for (size_t i = 0; i < stepped.size(); ++i) {
    const auto source = stepped[i].tensor.detach();
    weights_.push_back(
        {stepped[i].name, source, at::empty_like(source), in_module[i].tensor.detach()});
  }
  for (const auto& item : nn::named_state(context.task.module())) {
    if (uses_buffers_ && item.is_buffer) {
      buffers_.push_back({item.name, item.tensor, at::empty_like(item.tensor), item.tensor});
    }
  }
  if (!loaded_.empty()) take_loaded();
}

void WeightAverage::take_loaded() {
  std::map<std::string, at::Tensor> loaded(loaded_.begin(), loaded_.end());
  loaded_.clear();
  updates_ = loaded.at(kUpdates).item<int64_t>();
  if (updates_ == 0) return;
  const auto whole = [&](const std::string& name) {
    const auto found = loaded.find(name + kAverage);
    if (found != loaded.end()) return found->second;
    throw Error("train", ErrorKind::usage,
                {.what = "cannot go on averaging weights",
                 .got = "a checkpoint without an average of " + name});
  };
  for (auto& entry : buffers_) entry.average.copy_(whole(entry.name));
  const auto shards = exchange_->shards();
  for (size_t i = 0; i < weights_.size(); ++i) {
    auto& average = weights_[i].average;
    auto saved = whole(weights_[i].name);
    if (!shards.empty()) {
      saved = saved.flatten().narrow(0, shards[i].offset, shards[i].count).view(average.sizes());
    }
    average.copy_(saved);
  }
}

void WeightAverage::update() {
  const at::NoGradGuard no_grad;
  for (auto* entries : {&weights_, &buffers_}) {
    for (auto& [name, source, average, in_module] : *entries) {
      if (updates_ == 0 || !source.is_floating_point()) {
        average.copy_(source);
      } else if (decay_) {
        average.lerp_(source, 1 - *decay_);
      } else {
        average.add_((source - average).div_(updates_ + 1));
      }
    }
  }
  ++updates_;
}

void WeightAverage::put_into_module() {
  if (updates_ == 0) return;
  const at::NoGradGuard no_grad;
  for (auto* entries : {&weights_, &buffers_}) {
    for (auto& entry : *entries) {
      replaced_.emplace_back(entry.in_module, entry.in_module.clone());
      entry.in_module.copy_(entry.average);
    }
  }
  exchange_->spread_parameters();
}

void WeightAverage::take_back_alone() {
  const at::NoGradGuard no_grad;
  for (auto& [tensor, before] : replaced_) tensor.copy_(before);
  replaced_.clear();
}

void WeightAverage::take_back() {
  if (replaced_.empty()) return;
  take_back_alone();
  exchange_->spread_parameters();
}

NamedTensors WeightAverage::state() const {
  NamedTensors result{{kUpdates, at::scalar_tensor(updates_, at::kLong)}};
  if (updates_ == 0) return result;
  for (const auto* entries : {&weights_, &buffers_}) {
    for (const auto& entry : *entries) result.emplace_back(entry.name + kAverage, entry.average);
  }
  return result;
}

std::vector<parallel::Shard> WeightAverage::shards() const {
  if (updates_ == 0) return {};
  auto result = exchange_->shards();
  for (auto& shard : result) shard.name += kAverage;
  return result;
}

}  // namespace troika::train
