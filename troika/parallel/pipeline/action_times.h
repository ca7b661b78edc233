// Times of a pipeline's actions on one rank.
#pragma once

#include <cstddef>

#include "troika/base/clock.h"
#include "troika/base/trace.h"
#include "troika/layout/schedules/schedule.h"

namespace troika::parallel {

// Sums the times of passes in each run, and records every action in a trace: passes, reductions and
// steps on track "passes", sends and waits for messages on track "messages", named as in the text
// form of schedules. A receive's span is the time for which the rank waits for the message. Times
// are the host's. Forward passes that run at the same time count once. Not thread-safe.
class ActionTimes {
 public:
  // `trace` may be null, and must outlive this object.
  explicit ActionTimes(Trace* trace = nullptr) : trace_(trace) {}

  // Records an action from the span's construction to the end of the scope.
  class [[nodiscard]] ActionSpan {
   public:
    ActionSpan(ActionTimes& times, const layout::Action& action);
    ~ActionSpan();
    ActionSpan(const ActionSpan&) = delete;
    ActionSpan& operator=(const ActionSpan&) = delete;

   private:
    ActionTimes& times_;
    const layout::Action& action_;
    const Clock::time_point start_;
  };

  void begin_run();
  void end_run();
  // The seconds of the last run, and of its passes, without waits for messages.
  double run_seconds() const { return run_; }
  double pass_seconds() const { return passes_; }

 private:
  Trace* trace_;
  Clock::time_point begun_, busy_since_;
  int in_pass_ = 0;  // passes that have begun and not ended
  double run_ = 0, passes_ = 0;
};

}  // namespace troika::parallel
