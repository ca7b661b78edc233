// Where the time of training steps goes.
#pragma once

#include <array>
#include <string_view>

#include "troika/base/trace.h"
#include "troika/comm/group.h"
#include "troika/observe/profile.h"
#include "troika/observe/summary.h"

namespace troika::observe {

// The phases of a step, without gaps, in this order. `forward` begins with the batch; what
// communication the backward pass did not hide is `exposed_communication`, the wait for ranks that
// are later included; `other` is all that comes after the optimizer.
enum class Phase { data_wait, forward, backward, exposed_communication, optimizer, other };
inline constexpr std::array<std::string_view, 6> kPhaseNames{
    "data_wait", "forward", "backward", "exposed_communication", "optimizer", "other"};
// Their spans in a trace.
inline constexpr std::array<const char*, kPhaseNames.size()> kSpanNames{
    "data wait", "forward", "backward", "finish_backward", "optimizer", "other"};

// Keeps the medians of every phase's times, in memory that does not grow, and tells a trace: the
// span "step" and its phases on track "compute", "data wait" on track "data"; and a profile. For
// one thread:
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

  // Medians of the phases in order, then of the "step", on every rank of the group; NaN before
  // the first step. Called by all ranks; blocks.
  std::vector<PhaseTime> medians(const comm::Group& group) const;

 private:
  Trace* trace_;
  Profile* profile_;
  Clock::time_point start_;
  Clock::time_point latest_;  // end of the phase before
  std::array<Median, kPhaseNames.size() + 1> times_;
};

}  // namespace troika::observe
