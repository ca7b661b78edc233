#include "troika/plan/simulation/timeline.h"

#include <algorithm>
#include <utility>

namespace troika::plan {

size_t Timeline::keep(Call call) {
  if (unused_.empty()) {
    unused_.push_back(calls_.size());
    calls_.emplace_back();
  }
  const size_t number = unused_.back();
  unused_.pop_back();
  calls_[number] = std::move(call);
  return number;
}

void Timeline::after(double seconds, Call call) {
  loop_.push({.time = now() + seconds, .what = keep(std::move(call))});
}

void Timeline::send(int from, int to, double bytes, Call arrives) {
  loop_.send(from, {.who = to, .what = keep(std::move(arrives)), .bytes = bytes});
}

void Timeline::send_beside(int from, int to, double bytes, Call arrives) {
  const auto path = links_.path(from, to);
  move(path.uses, bytes,
       [this, latency = path.latency, arrives = std::move(arrives)] { after(latency, arrives); });
}

void Timeline::move(const std::vector<LinkUse>& uses, double bytes, Call ends) {
  loop_.begin(uses, bytes, {.what = keep(std::move(ends))});
}

void Timeline::tell(int from, int to, Call arrives) {
  after(links_.path(from, to).latency, std::move(arrives));
}

void Timeline::run() {
  while (!is_stopped_) {
    const auto event = loop_.next();
    if (!event) return;
    const auto call = std::exchange(calls_[event->what], nullptr);
    unused_.push_back(event->what);
    call();
  }
}

void ServerQueues::work(size_t server, double seconds, Timeline::Call then) {
  auto& free_at = free_at_[server];
  free_at = std::max(free_at, timeline_.now()) + seconds;
  timeline_.after(free_at - timeline_.now(), std::move(then));
}

}  // namespace troika::plan
