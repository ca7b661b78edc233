#include "troika/layout/all_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>

namespace troika::layout {

namespace {

struct Levels {
  int ranks;
  int nodes;
  int fullest;   // ranks of the node with most ranks
  int emptiest;  // ranks of the node with fewest ranks
};

Levels levels_of(std::span<const int> nodes) {
  std::map<int, int> counts;
  for (const int node : nodes) ++counts[node];
  const auto [least, most] = std::ranges::minmax(counts | std::views::values);
  return {static_cast<int>(nodes.size()), static_cast<int>(counts.size()), most, least};
}

// Returns the largest power of two that is not above n.
int power_within(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
}

int log2_up(int n) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
}

// Returns the time of a ring of n ranks, over one kind of link.
double ring_seconds(const Link& link, double reduce_per_byte, int n, double bytes) {
  if (n == 1) return 0;
  const double part = bytes / n;
  return 2 * (n - 1) * link.seconds(part) + (n - 1) * part * reduce_per_byte;
}

// Returns the time of an algorithm other than hierarchical among n ranks, independent of nodes.
// `link` connects two ranks; `shared` is this link when all ranks of a node use it at the same
// time.
double flat_seconds(Algorithm algorithm, const Link& link, const Link& shared,
                    double reduce_per_byte, int n, double bytes) {
  if (n == 1) return 0;
  const int rounds = log2_up(n);
  // If n is not a power of two, the ranks beyond it give their data to others first, and get the
  // result last.
  const int power = power_within(n);
  const bool fold = power < n;
  switch (algorithm) {
    case Algorithm::ring:
      return ring_seconds(link, reduce_per_byte, n, bytes);
    case Algorithm::recursive_doubling:
      return (rounds + (fold ? 1 : 0)) * shared.seconds(bytes) + rounds * bytes * reduce_per_byte;
    case Algorithm::rabenseifner: {
      const double moved = 2 * (power - 1.0) / power * bytes;
      const double all = 2 * log2_up(power) * link.latency + moved * shared.seconds_per_byte() +
                         moved / 2 * reduce_per_byte;
      // Both ranks of a pair reduce half of the data, before one of them gets the other half.
      return fold ? all + 2 * shared.seconds(bytes / 2) + bytes / 2 * reduce_per_byte +
                        shared.seconds(bytes)
                  : all;
    }
    case Algorithm::double_tree: {
      // The broadcast follows the reduction, and interior ranks reduce twice.
      const double segments = std::ceil(bytes / 2 / static_cast<double>(kSegmentBytes));
      return 2 * (rounds + segments) * link.latency + 2 * bytes * shared.seconds_per_byte() +
             bytes * reduce_per_byte;
    }
    default:
      return std::numeric_limits<double>::max();
  }
}

// Returns the time of the phase of `hierarchical` between nodes. There is one block per rank of
// the smallest node; their all-reduces share one link.
double between_seconds(Algorithm algorithm, const Links& links, const Levels& levels,
                       double bytes) {
  const Link wire{links.between.latency, links.between.bandwidth / levels.emptiest};
  return flat_seconds(algorithm, wire, wire, links.reduce_per_byte, levels.nodes,
                      bytes / levels.emptiest);
}

template <size_t n>
Algorithm least(const std::array<Algorithm, n>& candidates, auto&& seconds) {
  return *std::ranges::min_element(candidates, {}, seconds);
}

}  // namespace

double predict(Algorithm algorithm, const Links& links, std::span<const int> nodes, size_t bytes) {
  const Levels levels = levels_of(nodes);
  const auto size = static_cast<double>(bytes);
  if (algorithm == Algorithm::hierarchical && levels.nodes > 1 && levels.fullest > 1) {
    return ring_seconds(links.inside, links.reduce_per_byte, levels.fullest, size) +
           between_seconds(choose_between(links, nodes, bytes), links, levels, size);
  }
  // Algorithms that ignore nodes run at the speed of the slowest link in every step, and the ranks
  // of a node share it.
  Link pace = levels.nodes > 1 ? links.between : links.inside;
  Link shared = pace;
  if (levels.nodes > 1) shared.bandwidth /= levels.fullest;
  if (levels.fullest > 1) {
    pace = slower(pace, links.inside);
    shared = slower(shared, links.inside);
  }
  const auto flat = algorithm == Algorithm::hierarchical ? Algorithm::ring : algorithm;
  return flat_seconds(flat, pace, shared, links.reduce_per_byte, levels.ranks, size);
}

Algorithm choose(const Links& links, std::span<const int> nodes, size_t bytes) {
  return least(std::array{Algorithm::ring, Algorithm::recursive_doubling, Algorithm::rabenseifner,
                          Algorithm::double_tree, Algorithm::hierarchical},
               [&](Algorithm algorithm) { return predict(algorithm, links, nodes, bytes); });
}

Algorithm choose_between(const Links& links, std::span<const int> nodes, size_t bytes) {
  const Levels levels = levels_of(nodes);
  return least(std::array{Algorithm::ring, Algorithm::recursive_doubling, Algorithm::rabenseifner},
               [&](Algorithm algorithm) {
                 return between_seconds(algorithm, links, levels, static_cast<double>(bytes));
               });
}

}  // namespace troika::layout
