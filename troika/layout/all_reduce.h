// How an all-reduce is carried out, and how long that takes: what ranks choose by, and what is
// predicted of ranks that are not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "troika/layout/cluster.h"

namespace troika::layout {

// `automatic` takes the one with the least predicted time.
enum class Algorithm : int32_t {
  automatic,
  ring,
  recursive_doubling,
  rabenseifner,
  double_tree,
  hierarchical,
};

// Messages of double_tree are at most this large: so that a message's overhead does not show, and
// one is reduced in cache while the next arrives.
inline constexpr size_t kSegmentBytes = size_t{1} << 20;

// The cost of messages between the ranks of a group.
struct Links {
  Link inside = {};            // a node
  Link between = {};           // nodes
  double reduce_per_byte = 0;  // seconds that a rank needs to reduce a byte

  bool operator==(const Links&) const = default;
};

// Predicted seconds of one all-reduce among ranks on these nodes (by rank), after the alpha-beta-
// gamma model (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; as NCCL's tuner does).
double predict(Algorithm algorithm, const Links& links, std::span<const int> nodes, size_t bytes);

// The algorithm of least predicted time.
Algorithm choose(const Links& links, std::span<const int> nodes, size_t bytes);

// The algorithm of least predicted time for the phase of `hierarchical` between nodes. `bytes` are
// those of the whole all-reduce.
Algorithm choose_between(const Links& links, std::span<const int> nodes, size_t bytes);

}  // namespace troika::layout
