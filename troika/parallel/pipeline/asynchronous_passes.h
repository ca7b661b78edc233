// A stage's passes in a pipeline without flushes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "troika/layout/schedules/stage_weights.h"
#include "troika/parallel/pipeline/deferred_batch_norm.h"
#include "troika/parallel/pipeline/own_stages.h"
#include "troika/parallel/pipeline/pipeline_run.h"
#include "troika/parallel/pipeline/weight_versions.h"

namespace troika::parallel {

// Runs the passes of this rank's one stage in the order of asynchronous 1F1B (Narayanan et al.,
// SOSP 2019, section 3.2), step by step. Forward passes of later steps run before a step's last
// backward pass. If several replicas share the micro-batches, it runs the passes of its own ones;
// micro-batches are numbered over all replicas. Not thread-safe.
class AsynchronousPasses {
 public:
  // Everything must outlive this object.
  struct Parts {
    layout::AsynchronousStage order;
    const StagesOfModel& stages;
    OwnStages& own;
    DeferredBatchNorm& batch_norms;
    int replica = 0;             // of those that share the micro-batches
    double gradient_factor = 1;  // of the gradients of a step
  };
  explicit AsynchronousPasses(const Parts& parts);

  // Returns the number of micro-batches of the next step, which is shorter only before a drain.
  // `left` counts micro-batches from the first one of the step to the drain.
  int64_t in_step(int64_t left) const;
  // See Pipeline::reach().
  int64_t reach(int64_t count, int64_t left) const;
  // Gives the run that carries out the passes until the next drain.
  void fill(const PipelineRun& run) { run_.emplace(run); }
  // Runs passes up to the last backward pass of the next step, and averages its gradients over the
  // replicas. Where layout::AsynchronousStage::steps_after_forward(), the next forward pass runs
  // meanwhile. Gradients must be empty before. Blocks for messages. Returns the losses of the
  // step's micro-batches on the last stage, one element each, without graphs.
  std::vector<at::Tensor> advance(int64_t left);
  // Call it before the optimizer steps the parameters that advance() has left gradients for: gives
  // them memory that no micro-batch in flight uses.
  void begin_step();

  const layout::AsynchronousStage& order() const { return parts_.order; }
  // Whether no micro-batch is in flight on any rank: before fill(), and after begin_step() of the
  // last step before a drain.
  bool is_drained() const { return !run_; }
  // The most versions of the weights, and the most micro-batches between their forward and their
  // backward pass, that were kept at once so far.
  size_t most_versions() const { return most_versions_; }
  size_t most_active() const { return most_active_; }

 private:
  // The number of this replica's micro-batches among the first ones since the last drain.
  int64_t own_before(int64_t count) const { return parts_.order.own_before(count, parts_.replica); }
  int micro_batch(int64_t own) const {
    return static_cast<int>(own * parts_.order.replicas + parts_.replica);
  }
  // Returns the forward passes after which the backward pass of the replica's micro-batch `own`
  // runs.
  int64_t forwards_before(int64_t own, int64_t total) const;
  at::Tensor forward(int micro_batch);
  void backward(int micro_batch, bool completes);
  void scale_gradients();

  const Parts parts_;
  const int stage_;
  WeightVersions versions_;
  std::optional<PipelineRun> run_;  // from one drain to the next
  // Micro-batches since the last drain: those of earlier steps, and of this replica's ones those
  // that have run forward, and those that have also run backward.
  int64_t first_ = 0, begun_ = 0, done_ = 0;
  std::vector<at::Tensor> next_losses_;  // of micro-batches of the next step
  bool drains_ = false;                  // after the current step
  size_t most_versions_ = 1, most_active_ = 0;
};

}  // namespace troika::parallel
