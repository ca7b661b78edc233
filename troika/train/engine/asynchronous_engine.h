// The engine of pipelines without flushes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/train/engine/pipeline_engine.h"
#include "troika/train/engine/placed_micro_batches.h"

namespace troika::train {

// Trains a model under a plan whose stages step by themselves (layout::StageWeights). step() of a
// rank ends with the rank's own optimizer step, so ranks may be at different steps until the drain
// that MicroBatches::until_drain() names. The losses of a step reach each rank before its step
// ends, without waiting on the rank of the last stage.
class AsynchronousEngine : public PipelineEngine {
 public:
  // Expects an asynchronous plan and a task that require_plan_fits() accepts. Throws Error(usage)
  // as PipelineEngine does.
  explicit AsynchronousEngine(const EngineSetup& setup);

  StepResult step(MicroBatches& batches) override;
  int64_t most_ahead() const override;
  [[nodiscard]] std::function<void()> load(const checkpoint::CheckpointReader& saved,
                                           const checkpoint::NamedTensors& gradients) override;

 private:
  struct Sent {
    comm::Work work;
    at::Tensor losses;
  };

  // Takes the next `count` micro-batches.
  void take(MicroBatches& batches, int64_t count);
  void drain();
  // The number of micro-batches that are taken and not done.
  int64_t ahead() const { return taken_ - done_; }
  // Returns the losses of the step's micro-batches on all ranks of the pipeline: float64 [count].
  // `own` are those that this rank has computed.
  at::Tensor share_losses(const std::vector<at::Tensor>& own, int64_t count);
  // The same, with 0 for micro-batches of other replicas than the sender, which is replica
  // `replica` of the last stage.
  at::Tensor share_losses_of(int sender, bool is_sender, const std::vector<at::Tensor>& own,
                             int64_t replicas, int64_t replica, int64_t count);

  // Along the pipeline axis; of all ranks if the replicas share the micro-batches.
  const comm::Group losses_group_;
  std::deque<Sent> sent_;  // by the rank of the last stage
  // Holds the micro-batches since the last drain that are not done; empty at a drain.
  std::optional<PlacedMicroBatches> placed_;
  int64_t first_step_ = 0;        // of the run, after the last drain
  int64_t taken_ = 0, done_ = 0;  // micro-batches
};

}  // namespace troika::train
