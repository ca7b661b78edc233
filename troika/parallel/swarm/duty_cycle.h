// How long a thread has to rest so that it computes for a part of the time only.
#pragma once

#include <algorithm>
#include <chrono>

#include "troika/net/endpoint.h"

namespace troika::parallel {

// All times are of one clock.
class DutyCycle {
 public:
  // The part of the time, in (0, 1].
  explicit DutyCycle(double share) : share_(share) {}

  // The thread has computed for `span` until now. Returns until when it has to rest before it
  // computes again. If it computes earlier, it has to rest longer the next time; time in which it
  // waits for others counts as rest.
  net::Duration end_work(net::Duration span, net::Duration now) {
    const auto owed = std::max(net::Duration(0), rests_until_ - (now - span));
    const auto rest = std::chrono::duration<double>(span) * (1 / share_ - 1);
    return rests_until_ = now + owed + std::chrono::duration_cast<net::Duration>(rest);
  }

 private:
  const double share_;
  net::Duration rests_until_{0};
};

}  // namespace troika::parallel
