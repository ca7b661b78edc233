// Collectives, simulated as the messages of their algorithms.
#pragma once

#include <string>
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

enum class CollectiveKind {
  all_reduce,
  reduce_scatter,
  all_gather,
  summation,
  shift,       // each rank sends to the next one, and the last one to the first
  all_to_all,  // each rank sends as much to each other one, one after the other
};

struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  // The algorithm of an all-reduce. `automatic` chooses the algorithm with the least predicted
  // time.
  layout::Algorithm algorithm = layout::Algorithm::automatic;
  double bytes = 0;            // of the whole tensor; shift and all_to_all: that each rank sends
  double reduce_per_byte = 0;  // seconds per byte that a rank reduces
  // summation: devices of other hosts than the ranks', each with a summation server. Each rank has
  // one beside it.
  std::vector<int> spares = {};
  // summation: layout::SummationExchange::links.
  std::string links = {};
  // summation: with several hosts, the first rank of each sums the tensors of its host's ranks
  // before, and gives them the means; only these ranks have servers.
  bool sums_on_hosts = false;
  // summation: the bytes of these sums and means for each byte of the tensor.
  double host_sum_share = 1;
};

// Returns the phases of a collective among `ranks` (ascending), one after the other; none for one
// rank. The rounds are those of comm/algorithms. All rounds of a ring are equal and form one phase.
// Recursive doubling and Rabenseifner have a phase for each round. double_tree has one phase for
// each direction, with pipelined segments. hierarchical has a phase of rings inside the hosts, the
// phases of all-reduces between hosts, and another phase inside the hosts. A reduce-scatter or an
// all-gather is a ring or, with several ranks on several hosts, a phase of rings inside the hosts
// and one of messages between them. A summation has one phase with all pushes and means, for the
// parts of summation_split(), and one before and after it if ranks of hosts sum first. The
// messages of a round progress together. Without other flows, with one rank on each host and a
// power of two of ranks, the phases take the time of layout::predict().
std::vector<CollectivePhase> collective_phases(const Collective& collective,
                                               const std::vector<int>& ranks,
                                               const ClusterLinks& links);

// Returns the seconds of phases, one after the other, without other flows on their links.
// `bandwidths` are ClusterLinks::bandwidths().
double seconds_alone(const std::vector<CollectivePhase>& phases,
                     const std::vector<double>& bandwidths);

// Returns phases in which several collectives progress together, phase by phase. Collectives with
// fewer phases end sooner.
std::vector<CollectivePhase> together(const std::vector<std::vector<CollectivePhase>>& all);

}  // namespace troika::plan
