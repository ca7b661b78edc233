// Decides when a run saves checkpoints: Lightning's ModelCheckpoint.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "troika/train/callbacks/checkpoint_manager.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Asks for checkpoints after every_n_train_steps, after train_time_interval, every_n_epochs, and at
// the end of the run. With every_n_epochs, the checkpoint is due at the end of each validation if
// validations come within epochs or not in every epoch, otherwise at the end of the epoch;
// save_on_train_epoch_end overrides this. With every_n_epochs 0, no checkpoint of an epoch enters
// the best, as in Lightning; the end of the run then only writes a latest checkpoint if save_last
// asks for it. With a `monitor`, a checkpoint that is due right before a validation waits for the
// validation, and one that is due before the metric was ever logged waits for the metric. A state
// is written only once, even if it is due for several reasons. Exception: a run that resumes after
// an epoch's last micro-batch may write the state again at the epoch's end.
//
// CheckpointManager decides which checkpoints to keep. The link `checkpoints/best` points to the
// best of them. With save_last, checkpoints that are due but not among the best are written too.
class ModelCheckpoint : public Callback {
 public:
  // Throws Error(usage) for invalid values of save_last or save_on_train_epoch_end.
  explicit ModelCheckpoint(const ModelCheckpointOptions& options);

  const CheckpointManager& manager() const { return manager_; }

  std::string name() const override { return "model_checkpoint"; }
  bool monitors() const override { return true; }
  std::string monitored() const override { return monitor_.name; }
  bool keeps_time() const override { return std::isfinite(interval_); }
  void on_fit_start(FitContext& context) override;
  void on_train_batch_end(FitContext& context, const data::Batch& batch,
                          const at::Tensor& loss) override;
  void on_validation_end(FitContext& context) override;
  // Throws Error(usage) if the monitored metric was not logged although a validation has taken
  // place.
  void on_train_epoch_end(FitContext& context) override;
  void on_save_checkpoint(FitContext& context) override;
  void on_checkpoint(FitContext& context, const std::filesystem::path& checkpoint) override;
  checkpoint::NamedTensors state() const override;
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  struct Loaded {
    std::filesystem::path checkpoint;
    CheckpointManager::State state;
  };

  bool is_steps_turn(const FitContext& context) const;
  bool is_epoch_due(const FitContext& context) const;
  bool saves_at_epoch_end(const FitContext& context) const;
  // Asks for a checkpoint if it is to be kept.
  void consider(FitContext& context);
  // Asks for a checkpoint that is not among the best, if save_last asks for it.
  void ask_for_latest(FitContext& context) const;
  // Empty until the metric is logged.
  std::optional<double> score(const FitContext& context) const;

  const ModelCheckpointOptions options_;
  const Monitor monitor_;
  const double interval_;     // seconds
  double considered_at_ = 0;  // the run's time when the last timed checkpoint was due
  int64_t written_at_ = -1;   // samples trained on at the latest written checkpoint
  int64_t judged_at_ = -1;    // samples trained on at the latest checkpoint written with a score
  bool is_due_ = false;       // a checkpoint waits for the metric
  CheckpointManager manager_;
  std::optional<Loaded> loaded_;
};

}  // namespace troika::train
