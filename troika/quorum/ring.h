// The sum of the numbers of all members of a ring, over the messages of an endpoint.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/net/packing.h"

namespace troika::quorum {

struct Ring {
  net::Endpoint& endpoint;
  net::Channel channel;     // used for one sum only
  std::string left, right;  // connected peers; this member receives from `left`
  size_t index = 0;         // of this member in the ring
  size_t size = 1;
};

// How a sum ended.
struct RingResult {
  enum class End { done, stopped, failed };
  End end = End::done;
  std::string problem = {};  // if failed
};

// Replaces `values`, equally many on all members, by their sum: reduce-scatter and all-gather
// around the ring. All members get the same bits. Blocks until the sum is there, `stops` returns
// true, a neighbour is lost, or `at_most` has passed. `stops` runs under Endpoint's rules for
// callbacks. If the sum is not done, `values` must not be read, and live until the neighbours have
// taken or dropped what was sent. `after_first` is called after the first of 2 (size - 1) rounds.
// `packing`: how the numbers travel; null: as they are.
template <typename Number>
RingResult ring_sum(const Ring& ring, const std::shared_ptr<std::vector<Number>>& values,
                    const std::function<bool()>& stops, net::Duration at_most,
                    const std::function<void()>& after_first,
                    const net::Packing<Number>* packing = nullptr);

}  // namespace troika::quorum
