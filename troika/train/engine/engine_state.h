// The state of an engine of one stage, as checkpoints hold it.
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

// Names in checkpoints of gradients of a step's micro-batches so far, which are different on all
// ranks.
constexpr const char* kGradientPrefix = "gradient.";

// Where a callback has replaced the model in a checkpoint, the weights to go on with have the names
// of the model's behind this.
constexpr const char* kRawPrefix = "raw_model.";

// The parts of an engine; they must outlive this object.
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

  // Engine::state() and load().
  checkpoint::RankState state(bool in_step) const;
  std::function<void()> load(const checkpoint::CheckpointReader& saved,
                             const checkpoint::NamedTensors& gradients);

 private:
  // In which order weights lie in memory, for states that follow it: shards are of contiguous ones.
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
