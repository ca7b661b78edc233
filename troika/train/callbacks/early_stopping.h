// Ends a run whose metric no longer becomes better: Lightning's EarlyStopping.
#pragma once

#include "troika/train/callbacks/monitor.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Looks at its metric whenever it is new: after validations for one of them, else at the end of
// epochs. Ranks decide alike, as the metric is the same on all.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options);

  std::string name() const override { return "early_stopping"; }
  bool monitors() const override { return true; }
  std::string monitored() const override { return options_.strict ? monitor_.name : std::string(); }
  // Throws Error(usage) if `strict` and the metric is not logged.
  void on_train_epoch_end(FitContext& context) override;
  void on_validation_end(FitContext& context) override;
  checkpoint::NamedTensors state() const override;
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  void look_at(FitContext& context);
  // Why to stop, or nothing.
  std::string judge(double value);

  const EarlyStoppingOptions options_;
  const Monitor monitor_;
  double best_;
  int64_t waited_ = 0;      // times in a row without improvement
  bool validated_ = false;  // in the epoch that is on
  bool found_ = false;      // the metric, ever
};

}  // namespace troika::train
