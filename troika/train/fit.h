// One call of Trainer::fit(): the loop, and everything that lives as long as it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/group.h"
#include "troika/comm/timeline.h"
#include "troika/data/loader.h"
#include "troika/data/sampler.h"
#include "troika/train/checkpoint_writer.h"
#include "troika/train/loops.h"
#include "troika/train/run_outputs.h"
#include "troika/train/stop.h"
#include "troika/train/summary.h"
#include "troika/train/training_step.h"

namespace troika::train {

class Fit {
 public:
  // All that is referred to must outlive this object.
  Fit(const TrainOptions& options, comm::Group group, const std::filesystem::path& folder,
      Task& task, const data::Dataset& training, const data::Dataset& validation,
      const StopQuestion& question);
  ~Fit();
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  // What ended it: `none` when it is done.
  cluster::StopRequest run();
  RunSummary summary(const std::string& status) const;
  // Called by all ranks.
  std::vector<PhaseTime> phase_times() const { return times_.medians(group_); }

 private:
  bool is_main() const { return group_.rank() == 0; }
  Trace* trace() { return timeline_ ? &timeline_->trace() : nullptr; }

  // Of the whole run without max_steps.
  int64_t planned_steps() const;
  bool at_step_limit() const;
  // Returns early, after any pass, when asked to stop.
  void train_epoch();
  void train_batch(const data::Batch& batch, bool is_last);
  void end_epoch();
  void log_training();
  void validate();
  void write_timeline();

  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  // The folder of a checkpoint to go on from, or nothing; the same on all ranks.
  std::filesystem::path checkpoint_to_load() const;
  void restore(const std::filesystem::path& checkpoint);
  void save();
  // Waits for a checkpoint that is being written.
  void finish_saving();
  void saved(const std::filesystem::path& checkpoint);

  const TrainOptions& options_;
  comm::Group group_;
  const std::filesystem::path folder_;
  Task& task_;
  const data::Dataset& training_;
  const data::Dataset& validation_;
  const data::RankOf ranks_;
  const int64_t batch_;  // samples a pass over all ranks
  const int64_t passes_;
  const data::Sampler sampler_;
  std::optional<comm::Timeline> timeline_;
  StepTimes times_;
  std::optional<TrainingStep> training_step_;
  Stop stop_;
  Loops at_;
  std::optional<CheckpointWriter> writer_;
  std::filesystem::path former_;      // checkpoint, before the one that is being written
  std::filesystem::path checkpoint_;  // the latest
  int64_t saved_samples_ = -1;        // trained on when it was written
  std::optional<RunOutputs> outputs_;
  const Stopwatch since_start_;
  Median step_milliseconds_;
  double step_seconds_ = 0;       // of the passes of this step so far
  Stopwatch interval_;            // since the latest logged row
  int64_t interval_samples_ = 0;  // trained on since
};

}  // namespace troika::train
