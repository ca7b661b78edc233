// Saves the state of a run that fails: Lightning's OnExceptionCheckpoint.
#pragma once

#include "troika/train/run/callback.h"

namespace troika::train {

// Ranks that failed cannot agree any more, so nothing collective is done: rank 0, and a rank that
// failed by itself, each write what they have into checkpoints/on_exception/rank-R, as a checkpoint
// of one rank with a link `last` of its own, where the strategy leaves each rank all states (ddp,
// horovod, dp). With others the log says that the latest checkpoint is what there is.
//
// A run goes on from it with the optimizer step that failed. It is not to the bit the run that
// did not fail: what the failed pass did before it failed stays done, which is to batch-norm
// statistics and random numbers.
class ExceptionCheckpoint : public Callback {
 public:
  std::string name() const override { return "exception_checkpoint"; }
  void on_exception(FitContext& context, const std::exception& problem) override;
};

}  // namespace troika::train
