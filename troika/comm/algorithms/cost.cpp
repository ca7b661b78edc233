#include "troika/comm/algorithms/cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>

#include "troika/comm/algorithms/all_reduce.h"
#include "troika/comm/algorithms/nodes.h"

namespace troika::comm {

namespace {

constexpr size_t kLargeBytes = size_t{256} << 10;
constexpr int kSmallRounds = 8;

// Seconds of one exchange of `bytes` with both neighbours of a ring of `party`; each member sends
// and receives, as in most steps of the algorithms.
double time_exchange(const Party& party, size_t bytes, int rounds) {
  const int n = party.size();
  std::vector<char> out(bytes);
  std::vector<char> in(bytes);
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    Transfers both(party);
    both.receive(modulo(party.me - 1, n), {in.data(), bytes});
    both.send(modulo(party.me + 1, n), {out.data(), bytes});
    both.wait();
    best = std::min(best, watch.seconds());
  }
  return best;
}

Link time_link(const Party& party) {
  if (party.size() == 1) return {};
  time_exchange(party, 8, 2);  // connections open and caches warm
  const double small = time_exchange(party, 8, kSmallRounds);
  const double large = time_exchange(party, kLargeBytes, 2);
  return {small, std::max(0.0, large - small) / static_cast<double>(kLargeBytes)};
}

// Seconds of the phases of hierarchical_all_reduce inside a node.
double time_inside(const InsideNode& inside, size_t bytes, int rounds) {
  std::vector<char> buffer(bytes);
  const auto blocks = even_blocks({buffer.data(), bytes}, sizeof(float), inside.size());
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    inside.reduce_scatter(blocks, {c10::ScalarType::Float, ReduceOp::sum});
    inside.all_gather(blocks);
    best = std::min(best, watch.seconds());
  }
  return best;
}

double time_reduce() {
  std::vector<float> a(kLargeBytes / sizeof(float));
  const std::vector<float> b(a.size());
  void* into = a.data();
  const std::array<const void*, 2> terms{a.data(), b.data()};
  const Stopwatch watch;
  reduce({&into, 1}, terms, a.size(), c10::ScalarType::Float, ReduceOp::sum);
  return watch.seconds() / static_cast<double>(kLargeBytes);
}

struct Shape {
  int ranks;
  int nodes;
  int fullest;   // ranks of the fullest node
  int emptiest;  // ranks of the emptiest
};

Shape shape_of(std::span<const int> nodes) {
  std::map<int, int> counts;
  for (const int node : nodes) ++counts[node];
  const auto [least, most] = std::ranges::minmax(counts | std::views::values);
  return {static_cast<int>(nodes.size()), static_cast<int>(counts.size()), most, least};
}

int log2_up(int n) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
}

// A ring among n, over one kind of link.
double ring_seconds(const Link& link, double reduce_per_byte, int n, double bytes) {
  if (n == 1) return 0;
  const double part = bytes / n;
  return 2 * (n - 1) * link.seconds(part) + (n - 1) * part * reduce_per_byte;
}

// An algorithm other than hierarchical among n ranks without regard to nodes. `link` is that of two
// ranks, and `shared` the same when ranks of a node use it at once.
double flat_seconds(Algorithm algorithm, const Link& link, const Link& shared,
                    double reduce_per_byte, int n, double bytes) {
  if (n == 1) return 0;
  const int rounds = log2_up(n);
  const bool fold = !std::has_single_bit(static_cast<unsigned>(n));
  switch (algorithm) {
    case Algorithm::ring:
      return ring_seconds(link, reduce_per_byte, n, bytes);
    case Algorithm::recursive_doubling:
      return (rounds + (fold ? 1 : 0)) * (shared.seconds(bytes) + bytes * reduce_per_byte);
    case Algorithm::rabenseifner: {
      const double moved = 2 * (n - 1.0) / n * bytes;
      const double all =
          2 * rounds * link.latency + moved * shared.per_byte + moved / 2 * reduce_per_byte;
      return fold ? all + 2 * shared.seconds(bytes) : all;
    }
    case Algorithm::double_tree: {
      // Down follows up, and interior members reduce twice.
      const double segments = std::ceil(bytes / 2 / static_cast<double>(kSegmentBytes));
      return 2 * (rounds + segments) * link.latency + 2 * bytes * shared.per_byte +
             bytes * reduce_per_byte;
    }
    default:
      return std::numeric_limits<double>::max();
  }
}

// The phase of hierarchical_all_reduce between nodes: one member of the emptiest node for each
// block, over a link that all of them share.
double between_seconds(Algorithm algorithm, const Links& links, const Shape& shape, double bytes) {
  const Link wire{links.between.latency, links.between.per_byte * shape.emptiest};
  return flat_seconds(algorithm, wire, wire, links.reduce_per_byte, shape.nodes,
                      bytes / shape.emptiest);
}

template <size_t n>
Algorithm least(const std::array<Algorithm, n>& candidates, auto&& seconds) {
  return *std::ranges::min_element(candidates, {}, seconds);
}

}  // namespace

Links measure_links(const Party& everyone) {
  const Nodes nodes(everyone.channel.station().nodes, everyone.me);
  Links links;
  links.reduce_per_byte = time_reduce();
  const InsideNode inside(everyone, nodes);
  const auto n = static_cast<double>(inside.size());
  if (inside.size() > 1 && inside.barrier()) {
    time_inside(inside, kLargeBytes, 1);
    const double small = time_inside(inside, sizeof(float), kSmallRounds);
    const double large = time_inside(inside, kLargeBytes, kSmallRounds);
    // ring_seconds() solved for the link.
    links.inside.latency = small / (2 * (n - 1));
    links.inside.per_byte = std::max(
        0.0, (large - small) / (2 * (n - 1) / n * kLargeBytes) - links.reduce_per_byte / 2);
  } else {
    links.inside = time_link(everyone.part(nodes.my_node()));
  }
  // One rank of each node crosses to the next node.
  if (nodes.count() > 1 && nodes.place_of(everyone.me) == 0) {
    links.between = time_link(everyone.part(nodes.across(0)));
  }
  std::array<double, 5> slowest{links.inside.latency, links.inside.per_byte, links.between.latency,
                                links.between.per_byte, links.reduce_per_byte};
  recursive_doubling_all_reduce(everyone,
                                {reinterpret_cast<char*>(slowest.data()), sizeof(slowest)},
                                {c10::ScalarType::Double, ReduceOp::max});
  if (nodes.count() == 1) slowest[2] = slowest[0], slowest[3] = slowest[1];
  return {{slowest[0], slowest[1]}, {slowest[2], slowest[3]}, slowest[4]};
}

double predict(Algorithm algorithm, const Links& links, std::span<const int> nodes, size_t bytes) {
  const Shape shape = shape_of(nodes);
  const auto size = static_cast<double>(bytes);
  if (algorithm == Algorithm::hierarchical && shape.nodes > 1 && shape.fullest > 1) {
    return ring_seconds(links.inside, links.reduce_per_byte, shape.fullest, size) +
           between_seconds(choose_between(links, nodes, bytes), links, shape, size);
  }
  // Without regard to nodes the slowest link sets the pace of every step, and ranks of one node
  // share it.
  Link pace = links.inside;
  if (shape.nodes > 1) pace = links.between;
  Link shared = pace;
  if (shape.nodes > 1) shared.per_byte *= shape.fullest;
  const auto flat = algorithm == Algorithm::hierarchical ? Algorithm::ring : algorithm;
  return flat_seconds(flat, pace, shared, links.reduce_per_byte, shape.ranks, size);
}

Algorithm choose(const Links& links, std::span<const int> nodes, size_t bytes) {
  return least(std::array{Algorithm::ring, Algorithm::recursive_doubling, Algorithm::rabenseifner,
                          Algorithm::double_tree, Algorithm::hierarchical},
               [&](Algorithm algorithm) { return predict(algorithm, links, nodes, bytes); });
}

Algorithm choose_between(const Links& links, std::span<const int> nodes, size_t bytes) {
  const Shape shape = shape_of(nodes);
  return least(std::array{Algorithm::ring, Algorithm::recursive_doubling, Algorithm::rabenseifner},
               [&](Algorithm algorithm) {
                 return between_seconds(algorithm, links, shape, static_cast<double>(bytes));
               });
}

}  // namespace troika::comm
