// How many bytes may go at a rate.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

#include "troika/net/endpoint.h"

namespace troika::swarm {

// Fills at a rate, up to that of a quarter of a second. A message may take more than there is: the
// next one then waits until the debt is paid. So, over any time, at most `rate` times that time, a
// full bucket, and one message pass.
class TokenBucket {
 public:
  // Bytes per second above 0; infinite: there is no limit.
  explicit TokenBucket(double rate) : rate_(rate), level_(most()) {}

  bool is_limited() const { return std::isfinite(rate_); }
  void take(size_t bytes, net::Duration now) {
    fill(now);
    level_ -= static_cast<double>(bytes);
  }
  // How long the next message has to wait; 0: not at all.
  net::Duration wait(net::Duration now) {
    fill(now);
    if (level_ >= 0) return net::Duration(0);
    return std::chrono::ceil<net::Duration>(std::chrono::duration<double>(-level_ / rate_));
  }

 private:
  double most() const { return rate_ / 4; }
  void fill(net::Duration now) {
    const double seconds = std::chrono::duration<double>(now - filled_).count();
    level_ = is_limited() ? std::min(most(), level_ + rate_ * seconds) : rate_;
    filled_ = now;
  }

  const double rate_;
  double level_;  // bytes
  net::Duration filled_{0};
};

}  // namespace troika::swarm
