// The state of an engine, as checkpoints hold it.
#pragma once

#include <c10/core/MemoryFormat.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "troika/checkpoint/checkpoint.h"
#include "troika/layout/plan.h"
#include "troika/parallel/exchange.h"
#include "troika/train/engine/learning_rate.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/engine/placement.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::checkpoint {
class CheckpointReader;
}

namespace troika::train {

class Task;

// Prefix, in checkpoints, of the gradients of an unfinished step. They differ on all ranks.
constexpr const char* kGradientPrefix = "gradient.";

// Prefix, in checkpoints, of the weights to resume from if a callback has replaced the model's
// weights.
constexpr const char* kRawPrefix = "raw_model.";

// Prefix, in checkpoints, of the state of the exchange of a whole model's gradients.
constexpr const char* kExchangePrefix = "exchange.";

// One of the stages of a rank, or the whole model.
struct StateOfStage {
  std::string key;  // prefix, in checkpoints, of the exchange's state
  torch::nn::Module& module;
  parallel::Exchange& exchange;
};

// The parts of an engine. They must outlive this object.
struct EngineParts {
  const layout::Plan& plan;
  const OptimizerRecipe& recipe;
  const Placement& placement;
  Task& task;
  std::vector<StateOfStage> stages;
  // Parameters of these stages that another rank owns and saves.
  std::set<std::string> borrowed = {};
  // Whether this rank takes the gradients of an unfinished step. Replicas that share micro-batches
  // sum their gradients, so only the first of them does.
  bool takes_gradients = true;
  parallel::ParameterStore& store;
  Optimization& optimization;
  LearningRate& learning_rate;
};

class EngineState {
 public:
  explicit EngineState(const EngineParts& parts) : parts_(parts) {}

  // Implement Engine::state() and Engine::load().
  checkpoint::RankState state(bool in_step) const;
  std::function<void()> load(const checkpoint::CheckpointReader& saved,
                             const checkpoint::NamedTensors& gradients);

 private:
  // The memory order of the weights, for states that depend on it. Shards are cut from contiguous
  // weights.
  at::MemoryFormat states_format() const;
  nn::WeightLayout states_layout() const;
  // The state of the parts of the model that this rank trains.
  checkpoint::NamedTensors own_model() const;
  // In a pipeline, adds boxes to the whole tensors of this rank, because other ranks have other
  // tensors, and removes the tensors that another rank saves. `prefix` precedes the names of
  // parameters.
  void mark_owned(checkpoint::NamedTensors& entries, const std::string& prefix) const;
  void require_readable(const checkpoint::CheckpointReader& saved) const;
  void load_model(const checkpoint::CheckpointReader& saved);
  void take_loaded(const std::vector<checkpoint::NamedTensors>& exchanges,
                   const checkpoint::NamedTensors& gradients);
  void load_gradients(const std::map<std::string, at::Tensor>& gradients);

  const EngineParts parts_;
};

}  // namespace troika::train
