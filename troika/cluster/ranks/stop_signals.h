// The signals that tell a running job to save and end. The training loop polls them between steps.
#pragma once

namespace troika::cluster {

// Ordered: if ranks differ, all use the maximum. Stopping takes precedence over requeueing, so that
// a cancelled job does not return.
enum class StopRequest : int {
  none = 0,
  save_and_requeue = 1,  // SIGUSR1, which Slurm sends before the time limit (sbatch --signal)
  save_and_stop = 2,     // SIGTERM: scancel, pre-emption, the launcher; SIGINT: Ctrl-C
};

// While this object lives, these signals only set a flag; afterwards the previous handlers are
// restored. Slurm signals every rank, but not at the same step. All ranks must therefore agree on
// the flag (an all-reduce of the maximum) and act after the same step: save, call slurm::requeue()
// on one rank if requested, and end with ExitCode::requeued or ExitCode::stopped. A second SIGINT
// ends the process at once, as it does without this object.
//
// Only one per process at a time. Signals sent before its construction, or to other processes, are
// not seen.
class StopSignals {
 public:
  // `requeue` false: SIGUSR1 also means save and stop. `has_state` false: there is nothing to save
  // until begin_saving(); until then, the first SIGINT prints a message and ends the process.
  explicit StopSignals(bool requeue, bool has_state = true);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void begin_saving() const noexcept;

  // Returns the maximum request so far. Costs one atomic load; any thread may call it.
  StopRequest asked() const noexcept;
};

}  // namespace troika::cluster
