// Timeouts from what was measured.
#pragma once

#include <deque>

#include "troika/net/endpoint.h"

namespace troika::swarm {

// The limit for something that took known times before: their median, plus six times the median of
// the distances from it (MAD), plus 1.5 times what its bytes take on a link.
class AdaptiveTimeout {
 public:
  // The limit is in [least, most], and is `most` before the first time is known.
  AdaptiveTimeout(net::Duration least, net::Duration most) : least_(least), most_(most) {}

  // Adds a time that was measured. The last 32 count.
  void add(net::Duration took);
  // Doubles the limit, because it was too short for something that still goes on. From then on each
  // time that is added takes an eighth of that away, until what was measured is the larger limit.
  void raise();
  // `bytes`, if any, take bytes / bytes_per_second seconds beside the times that were added.
  net::Duration limit(double bytes = 0, double bytes_per_second = 1) const;

 private:
  const net::Duration least_, most_;
  std::deque<net::Duration> times_;
  net::Duration raised_{};  // a lower bound; 0: none
};

}  // namespace troika::swarm
