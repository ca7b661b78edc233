// Saves the state of a failing run: Lightning's OnExceptionCheckpoint.
#pragma once

#include "troika/train/run/callback.h"

namespace troika::train {

// Calls no collectives, because failed ranks cannot agree any more. If the strategy leaves each
// rank all states (ddp, horovod, dp), rank 0 and each rank that failed by itself write their state
// into checkpoints/on_exception/rank-R, as a checkpoint of one rank with its own link `last`. With
// other strategies, a log message refers to the latest regular checkpoint.
//
// A run resumes from it with the failed optimizer step. The resumed run may differ in bits from a
// run without the failure: changes that the failed micro-batch made to batch-norm statistics and
// random states remain.
class ExceptionCheckpoint : public Callback {
 public:
  std::string name() const override { return "exception_checkpoint"; }
  void on_exception(FitContext& context, const std::exception& problem) override;
};

}  // namespace troika::train
