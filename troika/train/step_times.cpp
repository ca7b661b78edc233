#include "troika/train/step_times.h"

#include <algorithm>

namespace troika::train {

namespace {

// Of at most 15 characters; see TraceEvent.
constexpr std::array<const char*, kPhaseNames.size()> kSpanNames{
    "data wait", "forward", "backward", "finish_backward", "optimizer", "other"};

double milliseconds(Clock::duration span) {
  return std::chrono::duration<double, std::milli>(span).count();
}

}  // namespace

void StepTimes::start() {
  start_ = latest_ = Clock::now();
}

void StepTimes::begin(int64_t step) {
  if (trace_) trace_->begin_step(step);
  end(Phase::data_wait);
}

void StepTimes::end(Phase phase) {
  const auto now = Clock::now();
  const auto index = static_cast<size_t>(phase);
  times_[index].add(milliseconds(now - latest_));
  if (trace_) {
    trace_->add({.track = phase == Phase::data_wait ? "data" : "compute",
                 .name = kSpanNames[index],
                 .start = latest_,
                 .end = now});
  }
  latest_ = now;
}

void StepTimes::finish() {
  end(Phase::other);
  times_.back().add(milliseconds(latest_ - start_));
  if (trace_) {
    trace_->add({.track = "compute", .name = "step", .start = start_, .end = latest_});
  }
}

std::array<double, kPhaseNames.size() + 1> StepTimes::medians() const {
  std::array<double, kPhaseNames.size() + 1> result{};
  std::ranges::transform(times_, result.begin(), [](const Median& m) { return m.value(); });
  return result;
}

}  // namespace troika::train
