// When a run saves, and which of its checkpoints stay: Lightning's ModelCheckpoint.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "troika/train/callback.h"
#include "troika/train/callbacks/monitor.h"
#include "troika/train/options.h"

namespace troika::train {

// Of the checkpoints that are due, the best `save_top_k` by the monitored metric stay, the best of
// which `checkpoints/best` links to; without a metric the latest are the best. With save_last the
// latest stays too. NaN is the worst there is.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(const TrainOptions::Checkpoint& options);

  std::string name() const override { return "model_checkpoint"; }
  bool monitors() const override { return true; }
  bool keeps_time() const override { return std::isfinite(interval_); }
  void on_fit_start(FitContext& context) override;
  void on_train_batch_end(FitContext& context, const data::Batch& batch, double loss) override;
  // Throws Error(usage) where the monitored metric is not logged.
  void on_train_epoch_end(FitContext& context) override;
  void on_save_checkpoint(FitContext& context) override;
  void on_checkpoint(FitContext& context, const std::filesystem::path& checkpoint,
                     const std::filesystem::path& former) override;
  NamedTensors state() const override;
  void load_state(const CheckpointReader& saved, const std::string& prefix) override;

 private:
  struct Kept {
    std::string name;  // of its folder; empty: of the one that is being written
    double score;
  };

  // With the one that is being written, if one is.
  const std::vector<Kept>& current() const;
  // Asks for a checkpoint if one is to stay.
  void consider(FitContext& context);
  double score(const FitContext& context) const;
  // With the one that is asked for.
  std::vector<Kept> next() const;

  const TrainOptions::Checkpoint options_;
  const Monitor monitor_;
  const double interval_;                           // seconds
  double considered_at_ = 0;                        // the run's time, at the latest
  std::vector<Kept> best_;                          // best first
  std::optional<std::vector<Kept>> being_written_;  // what best_ will be
  std::optional<double> pending_;                   // score of the one asked for
  std::filesystem::path loaded_folder_;             // where those of load_state() are
};

}  // namespace troika::train
