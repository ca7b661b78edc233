// When a run saves: Lightning's ModelCheckpoint.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "troika/train/callbacks/checkpoint_manager.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Asks for checkpoints after every_n_train_steps, after train_time_interval, and every_n_epochs:
// there at the end of each validation if validations come inside of epochs or not in each one, else
// at the end of the epoch (save_on_train_epoch_end decides otherwise), and at the end of the run;
// with every_n_epochs 0, where Lightning has no best ones of epochs, the end of the run is the
// latest checkpoint, which save_last wants or not. A checkpoint that is due right before a
// validation waits for it, if there is a `monitor`; one that is due before the metric was ever
// logged is judged when it is. A state is written once; but a run that goes on from the last pass
// of an epoch writes what the epoch's end adds.
//
// CheckpointManager says which checkpoints stay. The link `checkpoints/best` leads to the best of
// them. With save_last a checkpoint that is due and not among the best is written too.
class ModelCheckpoint : public Callback {
 public:
  // Throws Error(usage) for a save_last or save_on_train_epoch_end that means nothing.
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
  // Throws Error(usage) where the monitored metric is not logged though there was a validation.
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
  // Asks for a checkpoint if one is to stay.
  void consider(FitContext& context);
  // Asks for one that is not among the best, where save_last wants it.
  void ask_for_latest(FitContext& context) const;
  // Nothing before the metric was logged.
  std::optional<double> score(const FitContext& context) const;

  const ModelCheckpointOptions options_;
  const Monitor monitor_;
  const double interval_;     // seconds
  double considered_at_ = 0;  // the run's time, at the latest that was due by it
  int64_t written_at_ = -1;   // samples trained on, at the latest that was written
  int64_t judged_at_ = -1;    // the same, at the latest that was written with a score
  bool is_due_ = false;       // one waits for the metric
  CheckpointManager manager_;
  std::optional<Loaded> loaded_;
};

}  // namespace troika::train
