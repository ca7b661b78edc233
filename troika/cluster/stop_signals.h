// The signals that tell a running job to save and end, as a question its loop asks between steps.
#pragma once

namespace troika::cluster {

// Ordered: where ranks differ, they agree on the greatest. Stopping wins over requeueing, so that a
// job somebody cancels does not come back.
enum class StopRequest : int {
  none = 0,
  save_and_requeue = 1,  // SIGUSR1, which Slurm sends ahead of the time limit (sbatch --signal)
  save_and_stop = 2,     // SIGTERM: scancel, pre-emption, a launcher that gives up; SIGINT: Ctrl-C
};

// From construction to destruction these signals only set a flag, then the former handlers are
// back. Slurm signals every rank, but not at the same step: the flag is to be agreed on by all
// ranks (an all-reduce of the maximum) and acted on after the same step, by saving, then
// slurm::requeue() on one rank where that was asked, and ending with ExitCode::requeued or
// ExitCode::stopped. A second SIGINT ends the process at once, as it does without this object.
//
// One at a time in a process. Signals of before it, and those of other processes, are not seen.
class StopSignals {
 public:
  // `requeue` false: SIGUSR1, too, means to save and stop. `has_state` false: there is nothing to
  // save before begin_saving(), and until then the first SIGINT ends the process and says so.
  explicit StopSignals(bool requeue, bool has_state = true);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void begin_saving() const noexcept;

  // The greatest request so far. Costs one load; for any thread.
  StopRequest asked() const noexcept;
};

}  // namespace troika::cluster
