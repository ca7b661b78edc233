// Ends a run whose metric has stopped improving: Lightning's EarlyStopping.
#pragma once

#include "troika/train/callbacks/monitor.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Checks its metric whenever it has a new value: after validations if they log the metric,
// otherwise at the end of epochs. The metric is the same on all ranks, so all ranks make the same
// decision.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options);

  std::string name() const override { return "early_stopping"; }
  bool monitors() const override { return true; }
  std::string monitored() const override { return options_.strict ? monitor_.name : std::string(); }
  // Throws Error(usage) if `strict` is set and the metric was never logged after a validation.
  void on_train_epoch_end(FitContext& context) override;
  void on_validation_end(FitContext& context) override;
  checkpoint::NamedTensors state() const override;
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  void look_at(FitContext& context);
  // Returns the reason to stop, or an empty string.
  std::string judge(double value);

  const EarlyStoppingOptions options_;
  const Monitor monitor_;
  double best_;
  int64_t waited_ = 0;      // consecutive values without improvement
  bool validated_ = false;  // in the current epoch
  bool found_ = false;      // whether the metric was ever logged
};

}  // namespace troika::train
