#include "troika/swarm/adaptive_timeout.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace troika::swarm {

namespace {

constexpr size_t kTimes = 32;

net::Duration median_of(std::vector<net::Duration> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

}  // namespace

void AdaptiveTimeout::add(net::Duration took) {
  times_.push_back(took);
  if (times_.size() > kTimes) times_.pop_front();
  raised_ -= raised_ / 8;
}

void AdaptiveTimeout::raise() {
  raised_ = 2 * limit();
}

net::Duration AdaptiveTimeout::limit(double bytes, double bytes_per_second) const {
  if (times_.empty()) return most_;
  const auto median = median_of({times_.begin(), times_.end()});
  std::vector<net::Duration> distances;
  for (const auto time : times_) distances.push_back(time < median ? median - time : time - median);
  const double transfer = 1.5 * bytes / bytes_per_second;  // seconds
  const double longest = std::chrono::duration<double>(most_).count();
  const auto link = std::chrono::duration_cast<net::Duration>(
      std::chrono::duration<double>(std::isfinite(transfer) ? std::min(transfer, longest) : 0));
  const auto measured = median + 6 * median_of(std::move(distances));
  return std::clamp(std::max(measured, raised_) + link, least_, most_);
}

}  // namespace troika::swarm
