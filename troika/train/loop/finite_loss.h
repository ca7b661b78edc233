// Ends a run whose loss is infinite or NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include "troika/data/batch.h"
#include "troika/train/task/step_losses.h"

namespace troika::train {

struct FitContext;

// Returns the number in a loss of one element. Waits for the device if it is a GPU.
double number_of(const at::Tensor& loss);

// Whether this loss ends the run: it is infinite or NaN, trainer.terminate_on_nan is set, and no
// loss scaler skips the step.
bool ends_run(double loss, const FitContext& context);

// Throws Error(failure) for a loss that ends the run, after writing its micro-batch to
// nonfinite-step-S-rank-R.safetensors in the run's folder, each tensor under its name. Called
// between micro-batches. Other ranks learn of it by the failure of this rank.
[[noreturn]] void refuse_loss(const StepLoss& loss, const data::Batch& batch,
                              const FitContext& context);

}  // namespace troika::train
