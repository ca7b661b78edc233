// The request to save and end, as all ranks agree on it between passes.
#pragma once

#include <cstdint>
#include <functional>

#include "troika/base/clock.h"
#include "troika/cluster/stop_signals.h"
#include "troika/comm/group.h"

namespace troika::train {

// Asked on every rank, also with different answers: the greatest counts.
using StopQuestion = std::function<cluster::StopRequest()>;

// Ranks agree by an all-reduce of a few numbers, about once a second, and at each pass where one
// takes longer: how many passes lie between is a function of what was reduced, so the same on all
// ranks. Batches of an evaluation take other times than passes, and are counted apart.
class Stop {
 public:
  // With `keeps_time` ranks agree on the time also where there is no question.
  Stop(comm::Group group, StopQuestion question, bool keeps_time)
      : group_(std::move(group)), question_(std::move(question)), keeps_time_(keeps_time) {}

  // Once after each pass, on all ranks; whether to end. `seconds` is this rank's time.
  bool after_pass(double seconds) { return agree(passes_, seconds); }
  // The same between the batches of an evaluation, after begin_evaluation(): also on ranks that
  // have fewer batches, as often as on the others.
  void begin_evaluation() { batches_ = {}; }
  bool after_batch(double seconds) { return agree(batches_, seconds); }
  cluster::StopRequest asked() const { return asked_; }
  // The latest time of all ranks when they last agreed: the same on all.
  double seconds() const { return seconds_; }

 private:
  struct Pace {
    int64_t count = 0;  // since the last agreement
    int64_t interval = 1;
    Stopwatch since_agreement;
  };
  bool agree(Pace& pace, double seconds);

  comm::Group group_;
  StopQuestion question_;
  bool keeps_time_;
  cluster::StopRequest asked_ = cluster::StopRequest::none;
  double seconds_ = 0;
  Pace passes_;
  Pace batches_;
};

}  // namespace troika::train
