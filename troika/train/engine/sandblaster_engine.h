// The engine of replicas that compute portions of all samples (docs/sandblaster.md).
#pragma once

#include <optional>

#include "troika/parallel/servers/sandblaster.h"
#include "troika/train/engine/single_stage_engine.h"

namespace troika::train {

// A step is an iteration of L-BFGS on the mean loss of all training samples. The micro-batch of a
// step only begins it; its loss, for done(), is the value after the iteration.
class SandblasterEngine : public SingleStageEngine {
 public:
  // EngineSetup::training must be set. Throws Error(usage) for options that the strategy does not
  // have.
  explicit SandblasterEngine(const EngineSetup& setup);

  // Throws Error(usage) in the first step if the task's loss is not a function of samples and
  // parameters, as with dropout, or if it changes buffers, as batch norms do.
  StepResult step(MicroBatches& batches) override;
  bool leaves_steps() const override { return false; }

 private:
  // Loads samples [begin, end) of the training data.
  data::Batch load(int64_t begin, int64_t end) const;
  void require_function();
  std::optional<double> compute(const parallel::PortionWork& work);

  parallel::Sandblaster& sandblaster_;
  const int64_t samples_;
  const int64_t most_;  // samples that are computed at once
  bool is_checked_ = false;
};

}  // namespace troika::train
