#include "troika/parallel/pipeline/action_times.h"

namespace troika::parallel {

namespace {

double seconds(Clock::duration span) {
  return std::chrono::duration<double>(span).count();
}

}  // namespace

ActionTimes::ActionSpan::ActionSpan(ActionTimes& times, const layout::Action& action)
    : times_(times), action_(action), start_(Clock::now()) {
  if (layout::is_pass(action.kind) && times_.in_pass_++ == 0) times_.busy_since_ = start_;
}

ActionTimes::ActionSpan::~ActionSpan() {
  const auto end = Clock::now();
  if (layout::is_pass(action_.kind) && --times_.in_pass_ == 0) {
    times_.passes_ += seconds(end - times_.busy_since_);
  }
  if (!times_.trace_) return;
  times_.trace_->add({.track = layout::is_message(action_.kind) ? "messages" : "passes",
                      .name = layout::text_of(action_),
                      .start = start_,
                      .end = end});
}

void ActionTimes::begin_run() {
  begun_ = Clock::now();
  passes_ = 0;
}

void ActionTimes::end_run() {
  run_ = seconds(Clock::now() - begun_);
}

}  // namespace troika::parallel
