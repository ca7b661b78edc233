// Limits and measures the time of a run: Lightning's Timer.
#pragma once

#include <cmath>
#include <string>

#include "troika/base/clock.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Ends the run after the optimizer step (with interval "epoch": after the epoch) in which
// `duration` elapses. The format is DD:HH:MM:SS; empty means no limit. Time before a resume counts
// too.
class Timer : public Callback {
 public:
  // Throws Error(usage) for any other format.
  explicit Timer(const std::string& duration, const TimerOptions& options = {});

  std::string name() const override { return "timer"; }
  bool keeps_time() const override { return std::isfinite(duration_); }

  // This rank's seconds so far in training micro-batches and in validations, including earlier
  // calls.
  double training_seconds() const { return training_; }
  double validation_seconds() const { return validation_; }
  // Infinite without a limit; the same on all ranks.
  double seconds_left() const { return duration_ - now_; }

  void on_fit_start(FitContext& context) override;
  void on_train_batch_end(FitContext& context, const data::Batch& batch,
                          const at::Tensor& loss) override;
  void on_train_epoch_end(FitContext& context) override;
  void on_validation_start(FitContext& context) override;
  void on_validation_end(FitContext& context) override;
  void on_validation_interrupted(FitContext& context) override { on_validation_end(context); }
  void on_fit_end(FitContext& context) override;
  checkpoint::NamedTensors state() const override;
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  void look(FitContext& context, bool may_stop);

  const TimerOptions options_;
  const double duration_;  // seconds
  double now_ = 0;         // the duration of the run, the same on all ranks
  double training_ = 0;
  double validation_ = 0;
  Stopwatch validating_;
};

}  // namespace troika::train
