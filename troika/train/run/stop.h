// Lets all ranks agree, between micro-batches, on a request to save and end.
#pragma once

#include <cstdint>
#include <functional>

#include "troika/base/clock.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/comm/group.h"

namespace troika::train {

// Called on every rank. If the answers differ, the greatest one counts.
using StopQuestion = std::function<cluster::StopRequest()>;

// Ranks agree by an all-reduce of a few numbers, about once a second, or after each micro-batch if
// it takes longer than that. The number of micro-batches in between follows from the all-reduced
// times, so it is the same on all ranks. Batches of an evaluation take different times and are
// counted separately.
class Stop {
 public:
  // With `keeps_time`, ranks agree on the time even if there is no question.
  Stop(comm::Group group, StopQuestion question, bool keeps_time)
      : group_(std::move(group)), question_(std::move(question)), keeps_time_(keeps_time) {}

  // Called once after each micro-batch on all ranks. Returns whether to end. `seconds` is this
  // rank's duration of the run.
  bool after_micro_batch(double seconds) { return synchronize(micro_batches_, seconds); }
  // The same between the batches of an evaluation, after begin_evaluation(). All ranks must call it
  // equally often, including ranks with fewer batches.
  void begin_evaluation() { batches_ = {}; }
  bool after_batch(double seconds) { return synchronize(batches_, seconds); }
  // For a group of this rank alone: asks at once. Returns whether to end.
  bool ask_now() {
    if (question_) asked_ = question_();
    return asked_ != cluster::StopRequest::none;
  }
  cluster::StopRequest asked() const { return asked_; }
  // The greatest `seconds` of all ranks at the latest agreement; the same on all ranks.
  double seconds() const { return seconds_; }

 private:
  struct Pace {
    int64_t count = 0;  // since the last agreement
    int64_t interval = 1;
    Stopwatch since_agreement;
  };
  bool synchronize(Pace& pace, double seconds);

  comm::Group group_;
  StopQuestion question_;
  bool keeps_time_;
  cluster::StopRequest asked_ = cluster::StopRequest::none;
  double seconds_ = 0;
  Pace micro_batches_;
  Pace batches_;
};

}  // namespace troika::train
