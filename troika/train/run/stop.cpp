#include "troika/train/run/stop.h"

#include <algorithm>

#include "troika/compat/torch.h"

namespace troika::train {

namespace {

constexpr double kSeconds = 1;
constexpr double kMaxInterval = 1e6;

}  // namespace

bool Stop::synchronize(Pace& pace, double seconds) {
  if (!question_ && !keeps_time_) return false;
  const auto answer = [&] { return question_ ? question_() : cluster::StopRequest::none; };
  if (group_.size() == 1) {
    asked_ = answer();
    seconds_ = seconds;
  } else if (++pace.count == pace.interval) {
    const auto each = pace.since_agreement.seconds() / static_cast<double>(pace.count);
    const auto numbers = at::tensor({static_cast<double>(answer()), each, seconds}, at::kDouble);
    group_.all_reduce(numbers, comm::ReduceOp::max, {.label = "request to stop"});
    asked_ = static_cast<cluster::StopRequest>(numbers[0].item<int>());
    const double slowest = std::max(numbers[1].item<double>(), 1e-9);
    pace.interval = static_cast<int64_t>(std::clamp(kSeconds / slowest, 1.0, kMaxInterval));
    seconds_ = numbers[2].item<double>();
    pace.count = 0;
    pace.since_agreement.restart();
  }
  return asked_ != cluster::StopRequest::none;
}

}  // namespace troika::train
