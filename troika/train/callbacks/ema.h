// An exponential moving average of the weights (Polyak and Juditsky 1992), used in validations:
// Lightning's EMAWeightAveraging.
#pragma once

#include "troika/train/callbacks/weight_average.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Validations, and callbacks that monitor their metrics, use the average; training continues with
// the original weights. When fit() returns, the module has the average. The model in a checkpoint
// is also the average, so it reproduces the metrics of its validation; the weights to resume from
// are stored beside it, under kRawPrefix.
class Ema : public Callback {
 public:
  explicit Ema(const EmaOptions& options);

  std::string name() const override { return "ema"; }
  // Throws Error(usage) for strategies whose ranks train different weights between
  // synchronizations, and for buffers that differ between ranks.
  void on_fit_start(FitContext& context) override;
  void on_train_batch_end(FitContext& context, const data::Batch& batch,
                          const at::Tensor& loss) override;
  void on_validation_start(FitContext& context) override;
  void on_validation_end(FitContext& context) override;
  void on_validation_interrupted(FitContext& context) override;
  void on_fit_end(FitContext& context) override;
  void on_exception(FitContext& context, const std::exception& problem) override;
  checkpoint::NamedTensors state() const override { return average_.count(); }
  void replace_model(checkpoint::RankState& state) const override { average_.put_into(state); }
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  const EmaOptions options_;
  WeightAverage average_;
};

}  // namespace troika::train
