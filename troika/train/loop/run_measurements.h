// The measurements of one call of Trainer::fit(): times, profile, timeline and peak memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "troika/comm/timeline.h"
#include "troika/observe/profile.h"
#include "troika/observe/step_times.h"
#include "troika/train/loop/fit_clock.h"
#include "troika/train/loop/run_setup.h"

namespace troika::train {

// Not thread-safe.
class RunMeasurements {
 public:
  // Begins the wall times, and the profile if trainer.profiler is set. `setup` must outlive this
  // object.
  explicit RunMeasurements(const RunSetup& setup);
  // Begins the timeline if trainer.trace is set, and the times of steps' phases. Called by all
  // ranks; blocks.
  void begin_steps();

  FitClock& clock() { return clock_; }
  const FitClock& clock() const { return clock_; }
  observe::StepTimes& times() { return times_; }
  // Null without trainer.profiler.
  observe::Profile* profile() { return profile_ ? &*profile_ : nullptr; }
  // Null without trainer.trace.
  Trace* trace() { return timeline_ ? &timeline_->trace() : nullptr; }

  // Adds the peak of tensor bytes in a step.
  void add_peak(int64_t tensor_bytes) {
    peak_tensor_bytes_ = std::max(peak_tensor_bytes_, tensor_bytes);
  }
  // The peak of tensor bytes, by base/memory.h, in steps so far, without validations and
  // checkpoints. 0 if bytes are not counted.
  int64_t peak_tensor_bytes() const { return peak_tensor_bytes_; }
  // The medians of the phases of steps. Called by all ranks; blocks.
  std::vector<observe::PhaseTime> phase_times() const { return times_.medians(setup_.world()); }
  // The idle share of each rank of a pipeline. Called by all ranks; blocks.
  std::vector<double> bubbles() const { return times_.bubbles(setup_.world()); }

  // Writes the timeline and the profile of a run of `steps` optimizer steps into its folder. Called
  // by all ranks; blocks.
  void write(int64_t steps);

 private:
  const RunSetup& setup_;
  FitClock clock_;
  std::optional<observe::Profile> profile_;
  std::optional<comm::Timeline> timeline_;
  observe::StepTimes times_;
  int64_t peak_tensor_bytes_ = 0;
};

}  // namespace troika::train
