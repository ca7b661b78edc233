#include "troika/observe/step_times.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace troika::observe {

namespace {

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
  if (profile_) profile_->add("[Step]" + std::string(kPhaseNames[index]), now - latest_);
  latest_ = now;
}

void StepTimes::finish() {
  end(Phase::other);
  times_.back().add(milliseconds(latest_ - start_));
  if (trace_) {
    trace_->add({.track = "compute", .name = "step", .start = start_, .end = latest_});
  }
  if (profile_) profile_->add("run_training_batch", latest_ - start_);
}

std::vector<PhaseTime> StepTimes::medians(const comm::Group& group) const {
  const auto count = static_cast<int64_t>(times_.size());
  const auto mine = at::empty({count}, at::kDouble);
  std::ranges::transform(times_, mine.data_ptr<double>(),
                         [](const Median& median) { return median.value(); });
  const auto all = at::empty({group.size(), count}, at::kDouble);
  group.all_gather(all, mine, {}, {.label = "step times"});
  std::vector<PhaseTime> result;
  for (size_t p = 0; p < times_.size(); ++p) {
    const auto of_ranks = all.select(1, static_cast<int64_t>(p)).contiguous();
    const auto* first = of_ranks.data_ptr<double>();
    result.push_back({std::string(p < kPhaseNames.size() ? kPhaseNames[p] : "step"),
                      {first, first + group.size()}});
  }
  return result;
}

void StepTimes::add_pipeline(double passes, double run) {
  passes_.add(passes);
  runs_.add(run);
}

std::vector<double> StepTimes::bubbles(const comm::Group& group) const {
  const auto mine = at::tensor({passes_.value(), runs_.value()}, at::kDouble);
  const auto all = at::empty({group.size(), 2}, at::kDouble);
  group.all_gather(all, mine, {}, {.label = "pipeline times"});
  const auto longest = all.select(1, 1).max().item<double>();
  std::vector<double> result;
  for (int r = 0; r < group.size() && longest > 0; ++r) {
    result.push_back(1 - all[r][0].item<double>() / longest);
  }
  return result;
}

}  // namespace troika::observe
