// The end of a run whose loss is no number any more.
#pragma once

namespace troika::data {
struct Batch;
}

namespace troika::train {

struct FitContext;

// Throws Error(failure) where the loss of this rank's pass over `batch` is infinite or NaN, unless
// trainer.terminate_on_nan is off or a loss scaler skips such steps. It has then written the batch
// to nonfinite-step-S-rank-R.safetensors in the run's folder, as "inputs" and "targets". Between
// passes; other ranks are told by the failure of this one.
void require_finite(double loss, const data::Batch& batch, const FitContext& context);

}  // namespace troika::train
