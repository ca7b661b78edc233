// The engine of ranks that hold the whole model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "troika/compat/saved_tensors.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/keyed_draws.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/tensor/lanes.h"
#include "troika/train/engine/engine.h"
#include "troika/train/engine/engine_state.h"
#include "troika/train/engine/learning_rate.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::train {

// Trains a model of one stage: carries out layout::one_stage() with the task's steps.
class SingleStageEngine : public Engine {
 public:
  explicit SingleStageEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  // A rank's gradients of an unfinished step would fit one tensor or context axis only.
  bool leaves_steps() const override { return optimization_->cuts().is_empty() && !context_; }
  void update_batch_norms(const data::Batch& batch) override;
  void synchronize_replicas() override { exchange_->synchronize_replicas(); }
  void make_whole() override { exchange_->make_whole(); }
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
  parallel::ParameterStore& store() override { return *exchange_; }

  const Placement& placement() const override { return evaluator_.placement(); }
  void evaluate(RunMode mode, const data::Batch& batch, Evaluation& sums) override {
    evaluator_.evaluate(mode, batch, sums);
  }
  at::Tensor predict(const data::Batch& batch) override { return evaluator_.predict(batch); }

 protected:
  const EngineSetup& setup() const { return setup_; }
  parallel::Exchange& exchange() { return *exchange_; }
  // Adds the gradients of the next micro-batch to those of the step, or replaces them if it is its
  // first one. Returns the loss as done() takes it, and the number of samples; nullopt if there is
  // no micro-batch now.
  std::optional<std::pair<at::Tensor, int64_t>> accumulate(MicroBatches& batches, bool is_first);
  // Steps with the gradients that are there.
  void optimizer_step(int64_t step);

 private:
  // A micro-batch from its forward pass to the end of its last action.
  class ActiveMicroBatch;

  const layout::Schedule& schedule_of(int64_t micro_batches);
  // Returns the keys from which the micro-batch's dropout masks are drawn. Reuses the memory of the
  // previous micro-batch's keys unless a graph still holds them.
  std::shared_ptr<const nn::SampleKeys> keys_of(const data::Batch& batch, int64_t step);
  void plan_recomputation(const data::Batch& placed);
  // Runs the forward pass of a micro-batch or, together, those of two. `is_first`: the first of
  // them is the first of the step.
  void forward(ActiveMicroBatch& first, ActiveMicroBatch* second, bool is_first);
  void run_forward(ActiveMicroBatch& active);
  void backward(const ActiveMicroBatch& active, bool is_last);

  const EngineSetup setup_;
  WholeModelEvaluator evaluator_;
  const OptimizerRecipe recipe_;
  LearningRate learning_rate_;
  std::optional<int64_t> recompute_budget_;             // set until recomputation is planned
  std::shared_ptr<compat::SavedTensorHooks> offload_;   // for a module without blocks
  nn::WrapperGuard offloading_;                         // for a model of blocks
  std::unique_ptr<parallel::ContextParallel> context_;  // null: no context axis
  std::unique_ptr<parallel::Exchange> exchange_;
  std::optional<Optimization> optimization_;
  std::optional<EngineState> state_;
  layout::Schedule schedule_;             // of the latest number of micro-batches
  std::optional<parallel::Lanes> lanes_;  // none: micro-batches run one after the other
  std::shared_ptr<nn::SampleKeys> keys_;
  bool counts_memory_ = false;  // also the module's bytes
};

}  // namespace troika::train
