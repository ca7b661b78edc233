// Collectives as the messages of their algorithms.
#pragma once

#include <vector>

#include "troika/layout/all_reduce.h"
#include "troika/plan/simulation/cluster_links.h"

namespace troika::plan {

// A phase of a collective. During the first `seconds` nothing moves: these are the latencies of the
// rounds and the reduction of received data. Then `bytes` flow over the links of `uses`.
struct CollectivePhase {
  double seconds = 0;
  double bytes = 0;
  std::vector<LinkUse> uses = {};

  bool operator==(const CollectivePhase&) const = default;
};

enum class CollectiveKind { all_reduce, reduce_scatter, all_gather };

struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  // The algorithm of an all-reduce. The other collectives are rings. `automatic` takes the one of
  // least predicted time.
  layout::Algorithm algorithm = layout::Algorithm::automatic;
  double bytes = 0;            // of the whole tensor
  double reduce_per_byte = 0;  // seconds per byte that a rank reduces
};

// Returns the phases of a collective among `ranks` (ascending), one after the other; none for one
// rank. The rounds of the algorithms are those of comm/algorithms: a ring's rounds are equal, so
// they are one phase; recursive doubling and Rabenseifner have a phase for each round; double_tree
// one for each direction, whose segments are pipelined; hierarchical a phase of rings inside the
// hosts before and after those of all-reduces between hosts. Ranks of a round progress together.
// Without other flows, and with one rank on each host, phases take the time of layout::predict() if
// the number of ranks is a power of two.
std::vector<CollectivePhase> collective_phases(const Collective& collective,
                                               const std::vector<int>& ranks,
                                               const ClusterLinks& links);

// Returns phases in which several collectives progress together. All must have as many phases, or
// none.
std::vector<CollectivePhase> together(const std::vector<std::vector<CollectivePhase>>& all);

}  // namespace troika::plan
