#include "troika/train/callbacks/weight_average.h"

#include <map>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"
#include "troika/parallel/parameter_store.h"
#include "troika/parallel/pipeline/left_out.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

namespace {

constexpr const char* kUpdates = "updates";
constexpr const char* kAverage = ".average";

}  // namespace

void WeightAverage::attach(const FitContext& context) {
  store_ = context.training.store;
  weights_.clear();
  buffers_.clear();
  is_in_module_ = false;
  updates_ = 0;
  const auto in_module = store_->parameters();
  const auto& stepped = context.training.optimization->parameters();
  const bool is_cut = is_pipeline(*context.training.plan);
  for (size_t i = 0; i < stepped.size(); ++i) {
    const auto source = stepped[i].tensor.detach();
    auto box = stepped[i].box;
    // Other ranks of a pipeline have other tensors.
    if (is_cut && !box) box = layout::Box::whole(stepped[i].name, source.sizes().vec());
    weights_.push_back({stepped[i].name,
                        source,
                        at::empty_like(source),
                        in_module[i].tensor.detach(),
                        {},
                        std::move(box)});
  }
  if (uses_buffers_) {
    for (const auto& [name, tensor] : nn::named_buffers(context.task.module())) {
      if (parallel::is_left_out(tensor)) continue;  // another stage's
      buffers_.push_back({name, tensor, at::empty_like(tensor), tensor, {}, {}});
    }
  }
  if (loaded_) take_loaded(*loaded_);
  loaded_.reset();
}

void WeightAverage::load_state(const checkpoint::CheckpointReader& saved,
                               const std::string& prefix) {
  loaded_ = std::make_shared<checkpoint::CheckpointReader>(saved.of(saved.rank()));
  updates_key_ = prefix + kUpdates;
  prefix_ = prefix;
  suffix_ = kAverage;
}

void WeightAverage::load_from_model(const checkpoint::CheckpointReader& saved,
                                    const std::string& prefix) {
  loaded_ = std::make_shared<checkpoint::CheckpointReader>(saved.of(saved.rank()));
  updates_key_ = prefix + kUpdates;
  prefix_ = checkpoint::kModelPrefix;
  suffix_.clear();
}

void WeightAverage::take_loaded(const checkpoint::CheckpointReader& saved) {
  updates_ = saved.read(updates_key_).item<int64_t>();
  if (updates_ == 0) return;
  const auto key = [&](const std::string& name) {
    const auto whole = prefix_ + name + suffix_;
    if (saved.has(whole)) return whole;
    throw Error("train", ErrorKind::usage,
                {.what = "cannot resume averaging weights",
                 .got = "a checkpoint without an average of " + name});
  };
  // If the checkpoint has no averages of buffers, the averages start with the buffers' latest
  // values.
  for (auto& entry : buffers_) entry.average.copy_(saved.read(key(entry.name)));
  for (auto& entry : weights_) {
    auto box = entry.box.value_or(layout::Box::whole({}, entry.average.sizes().vec()));
    box.name = key(entry.name);
    entry.average.copy_(saved.read(box).view_as(entry.average));
  }
}

void WeightAverage::update() {
  const at::NoGradGuard no_grad;
  for (auto* entries : {&weights_, &buffers_}) {
    for (auto& [name, source, average, in_module, replaced, box] : *entries) {
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

WeightAverage WeightAverage::copy() const {
  WeightAverage result(decay_, uses_buffers_);
  result.store_ = store_;
  result.weights_ = weights_;
  result.buffers_ = buffers_;
  result.updates_ = updates_;
  for (auto* entries : {&result.weights_, &result.buffers_}) {
    for (auto& entry : *entries) entry.average = entry.average.clone();
  }
  return result;
}

void WeightAverage::put_into_module() {
  if (updates_ == 0) return;
  const at::NoGradGuard no_grad;
  for (auto* entries : {&weights_, &buffers_}) {
    for (auto& entry : *entries) {
      entry.replaced = entry.in_module.clone();
      entry.in_module.copy_(entry.average);
    }
  }
  is_in_module_ = true;
  store_->spread_parameters();
}

void WeightAverage::take_back_alone() {
  const at::NoGradGuard no_grad;
  for (auto* entries : {&weights_, &buffers_}) {
    for (auto& entry : *entries) {
      if (entry.replaced.defined()) entry.in_module.copy_(entry.replaced);
      entry.replaced.reset();
    }
  }
  is_in_module_ = false;
}

void WeightAverage::take_back() {
  if (!is_in_module_) return;
  take_back_alone();
  store_->spread_parameters();
}

checkpoint::NamedTensors WeightAverage::count() const {
  return {{kUpdates, at::scalar_tensor(updates_, at::kLong)}};
}

checkpoint::NamedTensors WeightAverage::state() const {
  checkpoint::NamedTensors result = count();
  if (updates_ == 0) return result;
  for (const auto* entries : {&weights_, &buffers_}) {
    for (const auto& entry : *entries) {
      result.emplace_back(entry.name + kAverage, entry.average, entry.box);
    }
  }
  return result;
}

void WeightAverage::put_into(checkpoint::RankState& state) const {
  if (updates_ == 0) return;
  std::map<std::string, state::Entry*> model;  // with names of its own: the entries change
  for (auto& entry : state.model) model[entry.first] = &entry;
  for (const auto* entries : {&weights_, &buffers_}) {
    for (const auto& entry : *entries) {
      const auto found = model.find(entry.name);
      if (found == model.end()) continue;  // another rank saves it
      const auto box = entry.box ? entry.box : found->second->box;
      // If the average is in the module and there are no masters, the weights are in `replaced`.
      const bool is_hidden =
          entry.replaced.defined() && entry.source.data_ptr() == entry.in_module.data_ptr();
      state.rest.emplace_back(kRawPrefix + entry.name, is_hidden ? entry.replaced : entry.source,
                              box);
      *found->second = {entry.name, entry.average, box};
    }
  }
}

}  // namespace troika::train
