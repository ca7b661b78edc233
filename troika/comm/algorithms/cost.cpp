#include "troika/comm/algorithms/cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "troika/comm/algorithms/all_reduce.h"

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
  int per_node;  // ranks of the fullest node
};

Shape shape_of(std::span<const int> nodes) {
  std::map<int, int> counts;
  for (const int node : nodes) ++counts[node];
  int fullest = 1;
  for (const auto& [node, count] : counts) fullest = std::max(fullest, count);
  return {static_cast<int>(nodes.size()), static_cast<int>(counts.size()), fullest};
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

}  // namespace

Links measure_links(const Party& everyone) {
  const auto& nodes = everyone.channel.station().nodes;
  const int mine = nodes[static_cast<size_t>(everyone.me)];
  std::vector<int> inside;
  std::map<int, std::vector<int>> members;
  for (int r = 0; r < everyone.size(); ++r) {
    if (nodes[static_cast<size_t>(r)] == mine) inside.push_back(r);
    members[nodes[static_cast<size_t>(r)]].push_back(r);
  }
  // One rank of each node crosses to the next node.
  std::vector<int> heads;
  for (const auto& [node, ranks] : members) heads.push_back(ranks.front());
  Links links;
  links.inside = time_link(everyone.part(inside));
  if (heads.size() > 1 && std::ranges::find(heads, everyone.me) != heads.end()) {
    links.between = time_link(everyone.part(heads));
  }
  links.reduce_per_byte = time_reduce();
  std::array<double, 5> slowest{links.inside.latency, links.inside.per_byte, links.between.latency,
                                links.between.per_byte, links.reduce_per_byte};
  recursive_doubling_all_reduce(everyone,
                                {reinterpret_cast<char*>(slowest.data()), sizeof(slowest)},
                                {c10::ScalarType::Double, ReduceOp::max});
  if (heads.size() == 1) slowest[2] = slowest[0], slowest[3] = slowest[1];
  return {{slowest[0], slowest[1]}, {slowest[2], slowest[3]}, slowest[4]};
}

double predict(Algorithm algorithm, const Links& links, std::span<const int> nodes, size_t bytes) {
  const auto [n, m, per_node] = shape_of(nodes);
  const auto size = static_cast<double>(bytes);
  const double gamma = links.reduce_per_byte;
  // Without regard to nodes the slowest link sets the pace of every step, and ranks of one node
  // share it.
  Link pace = links.inside;
  if (m > 1) pace = links.between;
  Link shared = pace;
  if (m > 1) shared.per_byte *= per_node;
  const int rounds = log2_up(n);
  const bool fold = !std::has_single_bit(static_cast<unsigned>(n));
  switch (algorithm) {
    case Algorithm::ring:
      return ring_seconds(pace, gamma, n, size);
    case Algorithm::recursive_doubling:
      return (rounds + (fold ? 1 : 0)) * (shared.seconds(size) + size * gamma);
    case Algorithm::rabenseifner: {
      const double moved = 2 * (n - 1.0) / n * size;
      const double all = 2 * rounds * pace.latency + moved * shared.per_byte + moved / 2 * gamma;
      return fold ? all + 2 * shared.seconds(size) : all;
    }
    case Algorithm::double_tree: {
      // Down follows up, and interior members reduce twice.
      const double segments = std::ceil(size / 2 / static_cast<double>(kSegmentBytes));
      return 2 * (rounds + segments) * pace.latency + 2 * size * shared.per_byte + size * gamma;
    }
    case Algorithm::hierarchical: {
      if (m == 1 || per_node == 1) return ring_seconds(pace, gamma, n, size);
      const double inside = ring_seconds(links.inside, gamma, per_node, size);
      const Link wire{links.between.latency, links.between.per_byte * per_node};
      return inside + ring_seconds(wire, gamma, m, size / per_node);
    }
    case Algorithm::automatic:
      break;
  }
  return std::numeric_limits<double>::max();
}

Algorithm choose(const Links& links, std::span<const int> nodes, size_t bytes) {
  constexpr std::array kCandidates{Algorithm::ring, Algorithm::recursive_doubling,
                                   Algorithm::rabenseifner, Algorithm::double_tree,
                                   Algorithm::hierarchical};
  return *std::ranges::min_element(kCandidates, {}, [&](Algorithm algorithm) {
    return predict(algorithm, links, nodes, bytes);
  });
}

}  // namespace troika::comm
