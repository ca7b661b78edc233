// The state of a single-stage engine, as checkpoints hold it.
#pragma once

#include <c10/core/MemoryFormat.h>

#include <functional>
#include <map>
#include <string>

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

// The parts of an engine. They must outlive this object.
struct EngineParts {
  const layout::Plan& plan;
  const OptimizerRecipe& recipe;
  const Placement& placement;
  Task& task;
  parallel::Exchange& exchange;
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
  void require_readable(const checkpoint::CheckpointReader& saved) const;
  void load_model(const checkpoint::CheckpointReader& saved);
  void take_loaded(const checkpoint::NamedTensors& exchange,
                   const checkpoint::NamedTensors& gradients);
  void load_gradients(const std::map<std::string, at::Tensor>& gradients);

  const EngineParts parts_;
};

}  // namespace troika::train
