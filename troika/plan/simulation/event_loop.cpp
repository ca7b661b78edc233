#include "troika/plan/simulation/event_loop.h"

namespace troika::plan {

void EventLoop::push(Event event) {
  event.order = order_++;
  events_.push(event);
}

std::optional<Event> EventLoop::next() {
  while (events_.empty() || events_.top().time > now_) {
    const auto end = flows_.next_end(now_);
    if (!end || (!events_.empty() && events_.top().time <= end->time)) break;
    now_ = end->time;
    push(flows_.finish(*end));
  }
  if (events_.empty()) return std::nullopt;
  const Event event = events_.top();
  events_.pop();
  now_ = event.time;
  return event;
}

}  // namespace troika::plan
