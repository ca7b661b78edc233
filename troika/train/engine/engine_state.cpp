#include "troika/train/engine/engine_state.h"

#include <fmt/format.h>

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
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kExchange = "exchange.";
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

checkpoint::RankState EngineState::state(bool in_step) const {
  const auto masters = parts_.optimization.masters();
  const bool in_shards =
      parts_.exchange.shards_parameters() || (parts_.exchange.has_shards() && !masters.empty());
  checkpoint::RankState result{
      .model = checkpoint::model_state(parts_.task.module(),
                                       in_shards ? stepped(parts_.optimization) : masters),
      .rest = {}};
  state::append(result.rest, kOptimizer, parts_.optimization.state());
  state::append(result.rest, kExchange, parts_.exchange.state());
  parts_.learning_rate.add_state(result.rest);
  result.rest.emplace_back(kMemoryFormat,
                           at::scalar_tensor(static_cast<int64_t>(states_format()), at::kLong));
  result.rest.emplace_back(kWeightLayout,
                           at::scalar_tensor(static_cast<int64_t>(states_layout()), at::kLong));
  if (!in_step) return result;
  for (const auto& parameter : nn::trained_parameters(parts_.task.module())) {
    // Otherwise this rank would take rank 0's gradient where it has none.
    const auto& gradient = parameter.second.grad();
    result.rest.emplace_back(kGradientPrefix + parameter.first,
                             gradient.defined() ? gradient : at::empty({0}));
  }
  return result;
}

at::MemoryFormat EngineState::states_format() const {
  return parts_.exchange.has_shards() ? at::MemoryFormat::Contiguous
                                      : parts_.placement.memory_format;
}

nn::WeightLayout EngineState::states_layout() const {
  return parts_.exchange.has_shards() ? nn::WeightLayout::in_out : parts_.placement.weight_layout;
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
         .hint = !parts_.exchange.has_shards() ? fmt::format("set trainer.{} to {}", option, before)
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
  const auto own = checkpoint::model_state(parts_.task.module());
  checkpoint::Shapes shapes, saved_shapes;
  for (const auto& [name, tensor] : own) shapes.emplace_back(name, tensor.sizes().vec());
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
    auto box = *parameter.box;
    box.name = key(parameter.name);
    parameter.tensor.copy_(saved.read(box).view_as(parameter.tensor));
    done.insert(parameter.name);
  }
  const auto masters = parts_.optimization.masters();
  const std::map<std::string, at::Tensor> master_of(masters.begin(), masters.end());
  for (const auto& [name, tensor] : own) {
    if (done.contains(name)) continue;
    const auto value = saved.read(key(name));
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
  return
      [this, exchange = saved.read_all(kExchange), gradients] { take_loaded(exchange, gradients); };
}

void EngineState::take_loaded(const checkpoint::NamedTensors& exchange,
                              const checkpoint::NamedTensors& gradients) {
  parts_.exchange.spread_parameters();
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : parts_.task.module().buffers()) buffers.push_back(buffer.clone());
  parts_.exchange.load_state(exchange);
  // Loading the exchange's state may have replaced the buffers by rank 0's.
  for (size_t i = 0; i < buffers.size(); ++i) parts_.task.module().buffers()[i].copy_(buffers[i]);
  load_gradients({gradients.begin(), gradients.end()});
}

void EngineState::load_gradients(const std::map<std::string, at::Tensor>& gradients) {
  for (auto& parameter : nn::trained_parameters(parts_.task.module())) {
    const auto found = gradients.find(parameter.first);
    if (found == gradients.end() || found->second.numel() != parameter.second.numel()) continue;
    const at::NoGradGuard no_grad;
    parameter.second.mutable_grad() = at::empty_like(parameter.second).copy_(found->second);
  }
  parts_.exchange.continue_step();
}

}  // namespace troika::train
