// Measures the phases of training steps.
#pragma once

#include <array>
#include <string_view>

#include "troika/base/trace.h"
#include "troika/comm/group.h"
#include "troika/observe/profile.h"
#include "troika/observe/summary.h"

namespace troika::observe {

// The phases of a step, contiguous and in this order. `forward` begins when the batch is loaded.
// `exposed_communication` is communication not hidden by the backward pass, including the wait for
// slower ranks. `other` is everything after the optimizer.
enum class Phase { data_wait, forward, backward, exposed_communication, optimizer, other };
inline constexpr std::array<std::string_view, 6> kPhaseNames{
    "data_wait", "forward", "backward", "exposed_communication", "optimizer", "other"};
// The phases' span names in a trace.
inline constexpr std::array<const char*, kPhaseNames.size()> kSpanNames{
    "data wait", "forward", "backward", "finish_backward", "optimizer", "other"};

// Keeps the medians of each phase's times in bounded memory. Also records a trace (the span "step"
// and its phases on track "compute", "data wait" on track "data") and a profile. For use by one
// thread:
//
//   times.start(); load(batch);
//   times.begin(step);                       // ends data_wait
//   forward(); times.end(Phase::forward); ...
//   times.finish();                          // ends other
class StepTimes {
 public:
  explicit StepTimes(Trace* trace = nullptr, Profile* profile = nullptr)
      : trace_(trace), profile_(profile) {}

  void start();
  void begin(int64_t step);
  void end(Phase phase);
  void finish();

  // Adds the seconds of a pipeline's passes in a step, and of the whole run of its schedule.
  void add_pipeline(double passes, double run);

  // Returns the medians of the phases in order, then of the "step", for every rank of the group;
  // NaN before the first step. Called by all ranks; blocks.
  std::vector<PhaseTime> medians(const comm::Group& group) const;
  // Returns the share of time in which each rank of a pipeline runs no pass: one minus the median
  // time of its passes over the median time of the schedule on the rank where that is longest.
  // Empty without a pipeline. Called by all ranks; blocks.
  std::vector<double> bubbles(const comm::Group& group) const;

 private:
  Trace* trace_;
  Profile* profile_;
  Clock::time_point start_;
  Clock::time_point latest_;  // end of the previous phase
  std::array<Median, kPhaseNames.size() + 1> times_;
  Median passes_, runs_;  // of a pipeline
};

}  // namespace troika::observe
