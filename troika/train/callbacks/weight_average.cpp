#include "troika/train/callbacks/weight_average.h"

#include <algorithm>
#include <string_view>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/exchange.h"
#include "troika/train/fit_context.h"
#include "troika/train/optimization.h"

namespace troika::train {

namespace {

constexpr const char* kUpdates = "updates";
constexpr std::string_view kAverage = ".average";

}  // namespace

void WeightAverage::attach(const FitContext& context) {
  exchange_ = context.exchange;
  module_ = nn::named_state(context.task.module());
  for (const auto& parameter : context.optimization->parameters()) {
    weights_.push_back(
        {parameter.name, parameter.tensor.detach(), at::empty_like(parameter.tensor.detach())});
  }
  for (const auto& item : module_) {
    if (uses_buffers_ && item.is_buffer) {
      buffers_.push_back({item.name, item.tensor, at::empty_like(item.tensor)});
    }
  }
  if (!loaded_.empty()) take_loaded();
}

void WeightAverage::take_loaded() {
  NamedTensors buffers, weights;
  for (const auto& [name, tensor] : loaded_) {
    const auto plain = name.substr(0, name.size() - std::min(name.size(), kAverage.size()));
    const bool is_buffer = std::any_of(module_.begin(), module_.end(), [&](const auto& item) {
      return item.is_buffer && item.name == plain;
    });
    if (name == kUpdates) {
      updates_ = tensor.item<int64_t>();
    } else {
      (is_buffer ? buffers : weights).emplace_back(name, tensor);
    }
  }
  loaded_.clear();
  if (updates_ == 0) return;
  const auto copy = [](std::vector<Entry>& entries, const NamedTensors& from) {
    for (auto& entry : entries) {
      const auto found = std::find_if(from.begin(), from.end(), [&](const auto& item) {
        return item.first == entry.name + std::string(kAverage);
      });
      if (found == from.end()) {
        throw Error("train", ErrorKind::usage,
                    {.what = "cannot go on averaging weights",
                     .got = "a checkpoint without an average of " + entry.name});
      }
      entry.average.copy_(found->second);
    }
  };
  copy(weights_, exchange_->sliced(weights));
  copy(buffers_, buffers);
}

void WeightAverage::update() {
  const at::NoGradGuard no_grad;
  for (auto* entries : {&weights_, &buffers_}) {
    for (auto& [name, source, average] : *entries) {
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

NamedTensors WeightAverage::gathered() const {
  NamedTensors result;
  for (const auto& entry : weights_) {
    result.emplace_back(entry.name + std::string(kAverage), entry.average);
  }
  result = exchange_->gathered(result);
  for (const auto& entry : buffers_) {
    result.emplace_back(entry.name + std::string(kAverage), entry.average);
  }
  return result;
}

void WeightAverage::put_into_module() {
  if (updates_ == 0) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, average] : gathered()) {
    for (auto& item : module_) {
      if (name != item.name + std::string(kAverage)) continue;
      replaced_.emplace_back(item.tensor, item.tensor.detach().clone());
      item.tensor.copy_(average);
    }
  }
}

void WeightAverage::take_back() {
  const at::NoGradGuard no_grad;
  for (auto& [tensor, before] : replaced_) tensor.copy_(before);
  replaced_.clear();
}

NamedTensors WeightAverage::state() const {
  NamedTensors result{{kUpdates, at::scalar_tensor(updates_, at::kLong)}};
  if (updates_ == 0) return result;
  for (auto& item : gathered()) result.push_back(std::move(item));
  return result;
}

}  // namespace troika::train
