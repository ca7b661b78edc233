// The training log of a run: losses, rows, progress line and LibTorch's warnings.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "troika/checkpoint/reader.h"
#include "troika/observe/metric_log.h"
#include "troika/observe/step_warnings.h"
#include "troika/train/loop/epochs.h"
#include "troika/train/loop/fit_clock.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/run_outputs.h"
#include "troika/train/task/step_losses.h"

namespace troika::train {

// Adds up what training steps log, and gives rows to the loggers and the progress bar. Not
// thread-safe.
class TrainLog {
 public:
  // Becomes the target of the context's log(). All referenced objects must outlive this object.
  TrainLog(FitContext& context, Epochs& epochs, FitClock& clock);
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;

  // Opens the logs in the run's folder. If they belong to the run of this `id`, drops rows later
  // than the current step; otherwise starts new logs. Call it after load_state(), and before all
  // functions that write rows, losses or progress.
  void open(const std::string& id);
  // Turns LibTorch's warnings on this thread into log lines, until this object is destroyed.
  void begin_warnings();
  // See StepWarnings::watch_losses(). Call it after begin_warnings().
  void watch_losses(std::optional<compat::LossWatch>& watch) { warnings_->watch_losses(watch); }

  // Called after an evaluation. Makes this object the target of the context's log() and of the
  // task's log() again.
  void resume();
  // Called before a micro-batch.
  void start_batch(const data::Batch& batch);
  // Logs the loss of a micro-batch, or keeps it on its GPU for now. Throws Error(failure) if a loss
  // ends_run().
  void add_loss(const at::Tensor& loss, const data::Batch& batch);
  // Logs the losses that are still on a GPU, and waits for them. Called before a row, a checkpoint
  // or a validation. Throws Error(failure) if a loss ends_run().
  void read_losses();
  // The same for a run that has failed. Does not check the losses.
  void read_losses_after_failure();

  // The next three functions write a row each. They are called by all ranks; the first two block.
  // Writes the row of the steps since the last call.
  void log_steps();
  // Writes the row of an epoch's end.
  void log_epoch();
  // Writes `row`, with the values of `common` and `own` added. The values of `common` and of
  // row.common must be the same on all ranks, and become the latest metrics.
  void log_row(const observe::MetricValues& common, const observe::LoggedRow& row,
               const observe::MetricValues& own = {});
  // Prints the losses and the accuracy at an epoch's end, on rank 0.
  void print_epoch() const;

  // Starts a progress line for the next `count` micro-batches of the epoch. Call advance() after
  // each of them.
  void start_progress(int64_t count);
  void advance() { outputs_->advance(epochs_.global_batch()); }
  void finish_progress() { outputs_->finish_progress(); }

  // Returns when all rows so far are in their files.
  void flush() { outputs_->flush(); }

  // Returns the numbers that are not in a row yet, for this rank's part of a checkpoint.
  at::Tensor state() const { return log_.state(); }
  // Forgets these numbers.
  void clear();
  // Adds this rank's state(). If the mesh has changed, rank 0 gets all ranks' numbers.
  void load_state(const checkpoint::CheckpointReader& saved);

 private:
  // `batch` is the loss's micro-batch; null: it is loaded again if needed.
  void take(const StepLoss& loss, const data::Batch* batch);
  void log_loss(const StepLoss& loss);
  bool is_main() const { return context_.group.rank() == 0; }

  FitContext& context_;
  Epochs& epochs_;
  FitClock& clock_;
  observe::MetricLog log_;
  StepLosses losses_;  // on a GPU, not logged yet
  std::optional<RunOutputs> outputs_;
  std::optional<observe::StepWarnings> warnings_;
};

}  // namespace troika::train
