#include "troika/train/engine/engine_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/state.h"
#include "troika/nn/weight_layout.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kOptimizerStates = "state.";
constexpr const char* kMemoryFormat = "memory_format";
constexpr const char* kWeightLayout = "weight_layout";

checkpoint::NamedTensors stepped(const Optimization& optimization) {
  checkpoint::NamedTensors result;
  for (const auto& parameter : optimization.parameters()) {
    result.emplace_back(parameter.name, parameter.tensor, parameter.box);
  }
  return result;
}

}  // namespace

checkpoint::NamedTensors EngineState::own_model() const {
  checkpoint::NamedTensors result;
  for (const auto& stage : parts_.stages) {
    for (auto& entry : nn::named_state(stage.module)) result.push_back(std::move(entry));
  }
  return result;
}

void EngineState::mark_owned(checkpoint::NamedTensors& entries, const std::string& prefix) const {
  if (!is_pipeline(parts_.plan)) return;
  std::erase_if(entries, [&](const state::Entry& entry) {
    return std::ranges::any_of(parts_.borrowed, [&](const std::string& name) {
      const auto key = prefix + name;
      return entry.first == key || (entry.first.starts_with(key + ".") &&
                                    entry.first.find('.', key.size() + 1) == std::string::npos);
    });
  });
  for (auto& entry : entries) {
    const auto& [name, tensor] = entry;
    if (entry.box || !name.starts_with(prefix)) continue;
    entry.box = layout::Box::whole(name, tensor.sizes().vec());
  }
}

checkpoint::RankState EngineState::state(bool in_step) const {
  const auto masters = parts_.optimization.masters();
  const bool in_shards =
      parts_.store.shards_parameters() || (parts_.store.has_shards() && !masters.empty());
  checkpoint::RankState result{.model = checkpoint::replaced(
                                   own_model(), in_shards ? stepped(parts_.optimization) : masters),
                               .rest = {}};
  parts_.optimization.cuts().give_boxes(result.model, {});
  mark_owned(result.model, {});
  auto optimizer = parts_.optimization.state();
  mark_owned(optimizer, kOptimizerStates);
  state::append(result.rest, kOptimizer, optimizer);
  for (const auto& stage : parts_.stages) {
    state::append(result.rest, stage.key, stage.exchange.state());
  }
  parts_.learning_rate.add_state(result.rest);
  result.rest.emplace_back(kMemoryFormat,
                           at::scalar_tensor(static_cast<int64_t>(states_format()), at::kLong));
  result.rest.emplace_back(kWeightLayout,
                           at::scalar_tensor(static_cast<int64_t>(states_layout()), at::kLong));
  if (!in_step) return result;
  for (const auto& stage : parts_.stages) {
    for (const auto& parameter : nn::trained_parameters(stage.module)) {
      // Without this empty tensor, the rank would load rank 0's gradient.
      const auto& gradient = parameter.second.grad();
      result.rest.emplace_back(kGradientPrefix + parameter.first,
                               gradient.defined() ? gradient : at::empty({0}));
    }
  }
  return result;
}

at::MemoryFormat EngineState::states_format() const {
  return parts_.store.has_shards() ? at::MemoryFormat::Contiguous : parts_.placement.memory_format;
}

nn::WeightLayout EngineState::states_layout() const {
  return parts_.store.has_shards() ? nn::WeightLayout::in_out : parts_.placement.weight_layout;
}

// Two kinds of states run over the weights in memory order: the quantization blocks of adamw_8bit
// and the states of gradient codecs. All other states are saved by dimensions.
void EngineState::require_readable(const checkpoint::CheckpointReader& saved) const {
  const bool follows_memory =
      parts_.recipe.optimizer.name == "adamw_8bit" || parts_.plan.compression.codec != "none";
  if (!follows_memory) return;
  const auto require = [&](const char* option, const std::string& before, const std::string& now) {
    if (before == now) return;
    throw Error(
        "train", ErrorKind::usage,
        {.what = "states of adamw_8bit and of ddp.hook follow the order of weights in memory",
         .got = fmt::format("a checkpoint of {} for {}", before, now),
         .expected = "the same order",
         .hint = !parts_.store.has_shards() ? fmt::format("set trainer.{} to {}", option, before)
                                            : "ZeRO keeps weights contiguous: resume with ddp"});
  };
  // Checkpoints of older versions lack the layout (it was in_out) and perhaps also the format.
  const auto number = [&](const char* name, auto otherwise) {
    return saved.has(name) ? static_cast<decltype(otherwise)>(saved.read(name).item<int64_t>())
                           : otherwise;
  };
  require(kMemoryFormat, nn::memory_format_name(number(kMemoryFormat, states_format())),
          nn::memory_format_name(states_format()));
  require(kWeightLayout, nn::weight_layout_name(number(kWeightLayout, nn::WeightLayout::in_out)),
          nn::weight_layout_name(states_layout()));
}

void EngineState::load_model(const checkpoint::CheckpointReader& saved) {
  const auto& cuts = parts_.optimization.cuts();
  checkpoint::Shapes shapes, saved_shapes;
  for (const auto& [name, tensor] : nn::named_state(parts_.task.module())) {
    const auto* cut = cuts.find(name);
    shapes.emplace_back(name, cut ? cut->shape : tensor.sizes().vec());
  }
  for (const auto& name : saved.names(checkpoint::kModelPrefix)) {
    saved_shapes.emplace_back(name.substr(std::string_view(checkpoint::kModelPrefix).size()),
                              saved.shape(name));
  }
  checkpoint::require_fit(shapes, saved_shapes, saved.path().string());
  const auto key = [&](const std::string& name) {
    return (saved.has(kRawPrefix + name) ? kRawPrefix : checkpoint::kModelPrefix) + name;
  };
  const at::NoGradGuard no_grad;
  std::set<std::string> done;
  for (const auto& parameter : parts_.optimization.parameters()) {
    if (!parameter.box) continue;
    const auto value = cuts.read_flat(saved, key(parameter.name), parameter.name, *parameter.box);
    parameter.tensor.copy_(value.view_as(parameter.tensor));
    done.insert(parameter.name);
  }
  const auto masters = parts_.optimization.masters();
  const std::map<std::string, at::Tensor> master_of(masters.begin(), masters.end());
  for (const auto& [name, tensor] : own_model()) {
    if (done.contains(name)) continue;
    const auto value = cuts.read_like(saved, key(name), name, tensor);
    tensor.copy_(value);
    const auto master = master_of.find(name);
    if (master != master_of.end()) master->second.copy_(value);
  }
}

std::function<void()> EngineState::load(const checkpoint::CheckpointReader& saved,
                                        const checkpoint::NamedTensors& gradients) {
  require_readable(saved);
  parts_.learning_rate.load(saved);
  load_model(saved);
  parts_.optimization.load(saved, kOptimizer);
  std::vector<checkpoint::NamedTensors> exchanges;
  for (const auto& stage : parts_.stages) exchanges.push_back(saved.read_all(stage.key));
  return [this, exchanges = std::move(exchanges), gradients] { take_loaded(exchanges, gradients); };
}

void EngineState::take_loaded(const std::vector<checkpoint::NamedTensors>& exchanges,
                              const checkpoint::NamedTensors& gradients) {
  parts_.store.spread_parameters();
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const auto& [key, module, exchange] = parts_.stages[i];
    std::vector<at::Tensor> buffers;
    for (const auto& buffer : module.buffers()) buffers.push_back(buffer.clone());
    exchange.load_state(exchanges[i]);
    // Undoes the copy of rank 0's buffers, which loading the exchange's state may include.
    for (size_t b = 0; b < buffers.size(); ++b) module.buffers()[b].copy_(buffers[b]);
  }
  load_gradients({gradients.begin(), gradients.end()});
}

void EngineState::load_gradients(const std::map<std::string, at::Tensor>& gradients) {
  for (const auto& stage : parts_.stages) {
    for (auto& parameter : nn::trained_parameters(stage.module)) {
      const auto found = gradients.find(parameter.first);
      if (!parts_.takes_gradients || found == gradients.end()) continue;
      const auto* cut = parts_.optimization.cuts().find(parameter.first);
      const auto own = cut ? cut->shard_of(found->second) : found->second;
      if (own.numel() != parameter.second.numel()) continue;
      const at::NoGradGuard no_grad;
      auto& gradient = parameter.second.mutable_grad();
      gradient = at::empty_like(parameter.second).copy_(own);
      // The owner's gradient holds the sum over the stages.
      if (parts_.borrowed.contains(parameter.first)) gradient.zero_();
    }
    stage.exchange.continue_step();
  }
}

}  // namespace troika::train
