// Runs a micro-batch through each stage of a model by itself, to measure it.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "troika/data/batch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/precision.h"
#include "troika/parallel/pipeline/deferred_batch_norm.h"
#include "troika/parallel/pipeline/stage_passes.h"
#include "troika/parallel/pipeline/stages.h"

namespace troika::train {

class Task;

// Runs stages one after another on one rank, each on tensors of its own: copies of those that
// earlier stages gave. Leaves buffers as they are. Not thread-safe.
class StageTrial {
 public:
  // `batch` must be placed. All other arguments must outlive this object.
  StageTrial(Task& task, const nn::NumericPrecision& precision,
             const parallel::StagesOfModel& stages, data::Batch batch);

  // Returns the tensors that a stage takes. The stages before must have been kept.
  nn::Tensors inputs(int stage) const;
  // Runs the blocks and, in the last stage, the loss. Returns the tensors that the stage gives.
  nn::Tensors forward(parallel::StagePasses& passes, int stage, nn::Tensors inputs);
  // Returns gradients of these tensors, which later stages would send back; undefined if none does.
  nn::Tensors gradients(const parallel::StagePasses& passes, int stage,
                        const nn::Tensors& outputs) const;
  // Copies the tensors that a stage gives, for the inputs of later stages.
  void keep(int stage, const nn::Tensors& outputs);
  // Runs the stage's part of a validation. The caller sets evaluation mode and disables gradients.
  void validate(parallel::StagePasses& passes, int stage, nn::Tensors inputs);

  const std::shared_ptr<const nn::SampleKeys>& keys() const { return keys_; }

 private:
  bool is_last(int stage) const { return stage + 1 == static_cast<int>(stages_.size()); }
  bool computes_loss(int stage) const;

  Task& task_;
  const nn::NumericPrecision& precision_;
  const nn::Model& model_;
  const parallel::StagesOfModel& stages_;
  const data::Batch batch_;
  const std::shared_ptr<const nn::SampleKeys> keys_;
  parallel::DeferredBatchNorm norms_;
  std::map<std::pair<int, nn::Slot>, at::Tensor> given_;  // by giving stage
};

}  // namespace troika::train
