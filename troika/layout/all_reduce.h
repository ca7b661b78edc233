// The algorithms of all-reduce and a model of their time. Ranks choose an algorithm by this model,
// and simulations predict times with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "troika/layout/cluster.h"

namespace troika::layout {

// `automatic` selects the algorithm with the least predicted time.
enum class Algorithm : int32_t {
  automatic,
  ring,
  recursive_doubling,
  rabenseifner,
  double_tree,
  hierarchical,
};

// The maximum size of messages of double_tree: large enough that a message's overhead is
// negligible, small enough that one message is reduced in cache while the next arrives.
inline constexpr size_t kSegmentBytes = size_t{1} << 20;

// The cost of messages between the ranks of a group.
struct Links {
  Link inside = {};            // within a node
  Link between = {};           // between nodes
  double reduce_per_byte = 0;  // seconds per byte that a rank reduces

  bool operator==(const Links&) const = default;
};

// Returns the predicted seconds of one all-reduce; `nodes` is the node of each rank. Uses the
// alpha-beta-gamma model (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005), as NCCL's tuner
// does.
double predict(Algorithm algorithm, const Links& links, std::span<const int> nodes, size_t bytes);

// Returns the algorithm with the least predicted time.
Algorithm choose(const Links& links, std::span<const int> nodes, size_t bytes);

// Returns the algorithm with the least predicted time for the phase of `hierarchical` between
// nodes. `bytes` is the size of the whole all-reduce.
Algorithm choose_between(const Links& links, std::span<const int> nodes, size_t bytes);

}  // namespace troika::layout
