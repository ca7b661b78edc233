// One call of Trainer::fit(): its loop over epochs, and all objects that live as long as the call.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "troika/observe/summary.h"
#include "troika/train/engine/engine.h"
#include "troika/train/loop/epochs.h"
#include "troika/train/loop/module_changes.h"
#include "troika/train/loop/own_order.h"
#include "troika/train/loop/run_checkpoints.h"
#include "troika/train/loop/run_measurements.h"
#include "troika/train/loop/run_origin.h"
#include "troika/train/loop/run_setup.h"
#include "troika/train/loop/train_log.h"
#include "troika/train/loop/validator.h"
#include "troika/train/run/fit_context.h"
#include "troika/train/run/hook_calls.h"
#include "troika/train/run/run_plan.h"
#include "troika/train/run/stop.h"

namespace troika::train {

// Not thread-safe. The constructor and run() are called by all ranks, and block.
class Fit {
 public:
  // Starts the run or resumes it, up to its first hook. Throws Error(usage) for options that do not
  // fit the data, the checkpoint or the task, and for two callbacks have the same name.
  Fit(RunSetup setup, const StopQuestion& question);
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  // Returns the request that ended the run; `none` if the run completed.
  cluster::StopRequest run();
  // Calls the hooks' on_exception with an error of run().
  void tell(const std::exception& problem);

  // Called before run(). Has no predicted memory.
  RunPlan plan() const;
  observe::RunSummary summary(const std::string& status) const;
  const RunMeasurements& measured() const { return measured_; }
  RunCheckpoints& checkpoints() { return checkpoints_; }

 private:
  std::unique_ptr<Engine> start_engine();
  // Implements FitContext::run_training_data.
  void run_training_data();
  bool is_stopping() const { return stop_.asked() != cluster::StopRequest::none; }
  // Trains and validates until the run is complete or asked to stop.
  void train_epochs();
  // Returns early, during the validation, if asked to stop.
  void end_epoch();

  // Supplies the micro-batches of a step from the loader; see fit_epoch.cpp.
  class LoadedMicroBatches;
  struct TakenMicroBatches;
  // Returns early, after any micro-batch, if asked to stop, or if the state was replaced by that of
  // the swarm. Returns false in the latter case.
  bool train_epoch();
  // Waits for this replica's part of the step, if it begins one of the quorum. `left`: as of
  // train_step(). Returns false if asked to stop.
  bool begin_quorum_step(TakenMicroBatches& taken, int64_t left);
  // Leaves the other replicas of the quorum. Saves the end of the run if the replica that did is
  // lost.
  void leave_quorum();
  // Whether this process only reduces for the others of a swarm.
  bool serves_swarm() const;
  // Makes this process a peer of the swarm; returns when it is one, or when asked to stop.
  void join_swarm();
  // Waits for the state that the swarm has, and takes it. Returns false if there is none: it is not
  // needed any more, or the run was asked to stop.
  bool take_swarm_state();
  // Repeats the validation within the epoch in which the run was stopped, if any. Returns whether
  // to continue training.
  bool repeat_validation();
  // Makes an optimizer step, or a part of it if leaves_step(). `left` is the number of
  // micro-batches left in the epoch. Returns the number of micro-batches trained on.
  int64_t train_step(TakenMicroBatches& taken, int64_t left);
  // With an engine whose ranks may be at different steps until a drain: returns the number of
  // micro-batches until all ranks must be at one step, for a validation or the end of the epoch.
  // With others, returns 0.
  int64_t next_drain(int64_t left) const;
  // Drains as soon as possible if a checkpoint is due, the run is complete or was asked to stop.
  void drain_if_asked();
  void start_batch(const data::Batch& batch);
  // `is_last`: the last micro-batch of a step.
  void finish_batch(const data::Batch& batch, const at::Tensor& loss, bool is_last,
                    bool is_last_of_epoch);
  // A step of a swarm has ended to which this peer has contributed no micro-batch.
  void finish_step_of_others(bool is_last_of_epoch);
  void end_step();
  // Between two micro-batches of a step: whether to leave the step, because a checkpoint is due or
  // the run was asked to stop.
  bool leaves_step();
  // Called once after each micro-batch, on all ranks.
  bool is_asked_to_stop();

  const RunSetup setup_;
  Epochs epochs_;
  RunMeasurements measured_;
  Stop stop_;
  FitContext context_;
  TrainLog log_;
  RunOrigin origin_;
  const ScopedModuleChanges module_changes_;
  const HookCalls hooks_;
  const std::unique_ptr<Engine> engine_;
  RunCheckpoints checkpoints_;
  Validator validator_;
  std::unique_ptr<OwnOrder> own_order_;  // of a peer of a swarm
  int64_t until_drain_ = 0;  // micro-batches, from the current step's first one; 0: at a drain
};

}  // namespace troika::train
