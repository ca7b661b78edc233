// The engine of ranks that hold stages of the model.
#pragma once

#include <memory>
#include <optional>

#include "troika/nn/block_wrapper.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/train/engine/engine.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/engine/learning_rate.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/engine/placed_micro_batches.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::train {

// Trains a model that is cut into stages, under the plan's schedule. A step first takes all of its
// micro-batches from MicroBatches::next(); they are the same on all ranks of a pipeline. The rank
// of the last stage broadcasts their losses along the pipeline axis. The module of each rank has
// the tensors of its own stages only (parallel::Pipeline).
class PipelineEngine : public Engine {
 public:
  // Expects a plan and a task that require_plan_fits() accepts.
  explicit PipelineEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  bool leaves_steps() const override { return false; }
  void synchronize_replicas() override;
  void fetch_states() override;
  // Does not fill in the stages of other ranks if the task came without values: then no rank ever
  // holds the whole model.
  void make_whole() override;
  void update_batch_norms(const data::Batch& batch) override;
  void judge(std::optional<double> validation_loss) override {
    learning_rate_.judge(validation_loss);
  }
  checkpoint::RankState state(bool in_step) const override { return state_->state(in_step); }
  [[nodiscard]] std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                           const checkpoint::NamedTensors& gradients) override {
    return state_->load(saved, gradients);
  }
  void try_to_make_whole() override;
  Optimization& optimization() override { return *optimization_; }
  parallel::ParameterStore& store() override { return *pipeline_; }

  const Placement& placement() const override { return placement_; }
  // All ranks of a pipeline call evaluate() and predict() with the same batch. Adds to `sums` only
  // where computes_outputs().
  void evaluate(RunMode mode, const data::Batch& batch, Evaluation& sums) override;
  // Undefined on ranks without the last stage.
  at::Tensor predict(const data::Batch& batch) override;

 protected:
  PlacedMicroBatches::Parts placed_parts() const;
  // Sets the learning rate, times `factor`, calls EngineSetup::before_step, clips and steps.
  void optimizer_step(int64_t step, double factor = 1);
  bool counts_memory() const { return counts_memory_; }
  const EngineSetup& setup() const { return setup_; }
  parallel::Pipeline& pipeline() { return *pipeline_; }

 private:
  class EvaluationSource;

  std::shared_ptr<nn::Model> model() const;
  // Gives the parameters that are whole on each rank of a tensor axis the values of the first one.
  // Servers add the ranks' gradients in different orders.
  void share_whole_parameters();
  // Returns the losses of the step's micro-batches on all ranks of the pipeline: float64 [count].
  at::Tensor broadcast_losses(const std::vector<at::Tensor>& own, int begin, int end) const;

  const EngineSetup setup_;
  const Placement placement_;
  const OptimizerRecipe recipe_;
  LearningRate learning_rate_;
  nn::WrapperGuard offloading_;
  std::unique_ptr<parallel::ContextParallel> context_;  // null: no context axis
  std::unique_ptr<parallel::Pipeline> pipeline_;
  std::optional<Optimization> optimization_;
  std::optional<EngineState> state_;
  bool counts_memory_ = false;
  bool keeps_stages_ = false;  // to the end of the run, see make_whole()
  bool finishes_outputs_ = true;
};

}  // namespace troika::train
