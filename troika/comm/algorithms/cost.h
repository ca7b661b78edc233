// Which all-reduce algorithm is fastest: predicted from what the group's links were measured to do.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "troika/comm/algorithms/party.h"
#include "troika/comm/call.h"

namespace troika::comm {

// The cost of a message between two ranks: seconds, and seconds per byte.
struct Link {
  double latency = 0;
  double per_byte = 0;

  double seconds(double bytes) const { return latency + bytes * per_byte; }
};

struct Links {
  Link inside;   // a node
  Link between;  // nodes
  double reduce_per_byte = 0;
};

// Times messages between neighbours of a node and between nodes, all ranks at once, and returns the
// same numbers on every rank: the slowest rank's. Where collectives inside a node need no messages,
// `inside` is the link over which a ring would take as long. Blocks; a few round trips and two
// messages of 256 KiB.
Links measure_links(const Party& everyone);

// Predicted seconds of one all-reduce among ranks on these nodes (by rank), after the alpha-beta-
// gamma model (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; as NCCL's tuner does).
double predict(Algorithm algorithm, const Links& links, std::span<const int> nodes, size_t bytes);

// The algorithm of least predicted time.
Algorithm choose(const Links& links, std::span<const int> nodes, size_t bytes);

// The algorithm of least predicted time for the phase of hierarchical_all_reduce between nodes.
// `bytes` are those of the whole all-reduce.
Algorithm choose_between(const Links& links, std::span<const int> nodes, size_t bytes);

}  // namespace troika::comm
