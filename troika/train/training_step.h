// One optimizer step, pass by pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "troika/comm/mesh_groups.h"
#include "troika/layout/plan.h"
#include "troika/nn/offload.h"
#include "troika/optim/plateau.h"
#include "troika/optim/schedule.h"
#include "troika/parallel/exchange.h"
#include "troika/train/checkpoint/checkpoint.h"
#include "troika/train/optimization.h"
#include "troika/train/optimizer_recipe.h"
#include "troika/train/placement.h"
#include "troika/train/step_times.h"

namespace troika::train {

class CheckpointReader;

// Names in checkpoints of gradients of a step's passes so far, which are different on all ranks.
constexpr const char* kGradientPrefix = "gradient.";

// Names in checkpoints of the weights to go on with, where a callback has replaced the model: those
// of the model behind this.
constexpr const char* kRawPrefix = "raw_model.";

// The module of a task with its exchange, optimizer and learning rates.
class TrainingStep {
 public:
  // `groups` are those of the plan's mesh, `steps` those of the whole run, `global_batch` the
  // samples a pass over all ranks. Called by all ranks; blocks. All that is referred to must
  // outlive this object; `trace` may be null. `before_step` is called once gradients and the
  // learning rate of a step are there.
  TrainingStep(const TrainOptions& options, const layout::Plan& plan, Task& task,
               const comm::MeshGroups& groups, int64_t steps, int64_t global_batch, Trace* trace,
               std::function<void()> before_step);

  // A backward pass; the last of a step is followed by the optimizer's, which is number `step` of
  // the run, counted from 0. Returns the loss, for which it waits where a GPU computes.
  double pass(const data::Batch& batch, bool is_first, bool is_last, int64_t step,
              StepTimes& times);
  // The replicas become the same bits on all ranks.
  void agree() { exchange_->agree(); }
  // Once after each validation, on all ranks the same loss. Throws Error(usage) where there is none
  // and the schedule follows it.
  void judge(std::optional<double> validation_loss);

  const Placement& placement() const { return placement_; }
  const Optimization& optimization() const { return *optimization_; }
  Optimization& optimization() { return *optimization_; }
  parallel::Exchange& exchange() { return *exchange_; }
  // The most bytes that base/memory.h counted in passes so far: validation and checkpoints are no
  // part of it. 0 where nothing is counted.
  int64_t peak_tensor_bytes() const { return peak_tensor_bytes_; }

  // The state of this rank that the next pass depends on: its shards, and whole tensors.
  // `in_step`: with the gradients of the step's passes so far. Tensors may share memory with this
  // object.
  RankState state(bool in_step) const;
  // Loads what state() gave, on any number of ranks of any strategy with the same states: of what
  // ranks share out this rank's parts alone are read. `gradients` are those of an unfinished step.
  // Does not communicate: what it returns is to be called then, on all ranks; it blocks, and the
  // module takes what was read. Throws Error(usage) where states that follow the order of weights
  // in memory are of another one, and for what does not fit.
  [[nodiscard]] std::function<void()> load(const CheckpointReader& saved,
                                           const NamedTensors& gradients);
  // For what ends before the first pass: where ranks share parameters out, the module gets all of
  // them again. Called by all ranks; blocks. Where that fails, as another rank is gone, a warning
  // says so.
  void try_to_make_whole();

 private:
  void plan_recomputation(const data::Batch& batch);
  void optimizer_step(int64_t step, StepTimes& times);
  // In which states that follow memory are: shards are of contiguous weights.
  at::MemoryFormat states_format() const;
  void require_readable(const CheckpointReader& saved) const;
  void load_model(const CheckpointReader& saved);
  void take_loaded(const NamedTensors& exchange, const NamedTensors& gradients);
  void load_gradients(const std::map<std::string, at::Tensor>& gradients);

  const TrainOptions& options_;
  const layout::Plan& plan_;
  Task& task_;
  const comm::MeshGroups groups_;
  const Placement placement_;
  const OptimizerRecipe recipe_;
  std::optional<int64_t> recompute_budget_;            // that is to be planned for
  std::shared_ptr<compat::SavedTensorHooks> offload_;  // of a module without blocks
  nn::WrapperGuard offloading_;                        // of a model of blocks
  optim::Schedule schedule_;
  std::optional<optim::ReduceOnPlateau> plateau_;
  std::unique_ptr<parallel::Exchange> exchange_;
  std::optional<Optimization> optimization_;
  const std::function<void()> before_step_;
  bool counts_memory_ = false;  // the module's too
  int64_t peak_tensor_bytes_ = 0;
};

}  // namespace troika::train
