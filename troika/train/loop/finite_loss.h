// The end of a run whose loss is no number any more.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/data/batch.h"
#include "troika/train/task/step_losses.h"

namespace troika::train {

struct FitContext;

// The number of a loss of one element, for which it waits where a GPU computes.
double number_of(const at::Tensor& loss);

// Whether a run ends by this loss: it is infinite or NaN, trainer.terminate_on_nan is on, and no
// loss scaler skips such steps.
bool ends_run(double loss, const FitContext& context);

// Throws Error(failure) for a loss that ends the run, once it has written its micro-batch to
// nonfinite-step-S-rank-R.safetensors in the run's folder, each tensor under its name. Between
// micro-batches; other ranks are told by the failure of this one.
[[noreturn]] void refuse_loss(const StepLoss& loss, const data::Batch& batch,
                              const FitContext& context);

}  // namespace troika::train
