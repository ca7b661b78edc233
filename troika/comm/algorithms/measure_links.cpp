#include "troika/comm/algorithms/measure_links.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "troika/comm/algorithms/all_reduce.h"
#include "troika/comm/algorithms/nodes.h"

namespace troika::comm {

namespace {

constexpr size_t kLargeBytes = size_t{256} << 10;
constexpr int kSmallRounds = 8;

// Returns the seconds of one exchange of `bytes` with both neighbours in a ring of `subset`. Each
// member sends and receives, as in most steps of the algorithms.
double time_exchange(const RankSubset& subset, size_t bytes, int rounds) {
  const int n = subset.size();
  std::vector<char> out(bytes);
  std::vector<char> in(bytes);
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    Transfers both(subset);
    both.receive(modulo(subset.me - 1, n), {in.data(), bytes});
    both.send(modulo(subset.me + 1, n), {out.data(), bytes});
    both.wait();
    best = std::min(best, watch.seconds());
  }
  return best;
}

// The cost of a message between neighbours of the ring of `subset`.
struct MessageCost {
  double latency = 0;   // seconds
  double per_byte = 0;  // seconds
};

MessageCost time_message(const RankSubset& subset) {
  if (subset.size() == 1) return {};
  time_exchange(subset, 8, 2);  // opens connections and warms caches
  const double small = time_exchange(subset, 8, kSmallRounds);
  const double large = time_exchange(subset, kLargeBytes, 2);
  return {small, std::max(0.0, large - small) / static_cast<double>(kLargeBytes)};
}

// Returns the seconds of hierarchical_all_reduce's phases inside a node.
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

}  // namespace

Links measure_links(const RankSubset& everyone) {
  const Nodes nodes(everyone.channel.info().nodes, everyone.me);
  MessageCost of_inside, of_between;
  const double reduce_per_byte = time_reduce();
  const InsideNode inside(everyone, nodes);
  const auto n = static_cast<double>(inside.size());
  if (inside.size() > 1 && inside.barrier()) {
    time_inside(inside, kLargeBytes, 1);
    const double small = time_inside(inside, sizeof(float), kSmallRounds);
    const double large = time_inside(inside, kLargeBytes, kSmallRounds);
    // Solves the predicted time of a ring for the link.
    of_inside.latency = small / (2 * (n - 1));
    of_inside.per_byte =
        std::max(0.0, (large - small) / (2 * (n - 1) / n * kLargeBytes) - reduce_per_byte / 2);
  } else {
    of_inside = time_message(everyone.select(nodes.my_node()));
  }
  // One rank of each node exchanges messages with the next node.
  if (nodes.count() > 1 && nodes.place_of(everyone.me) == 0) {
    of_between = time_message(everyone.select(nodes.across(0)));
  }
  std::array<double, 5> slowest{of_inside.latency, of_inside.per_byte, of_between.latency,
                                of_between.per_byte, reduce_per_byte};
  recursive_doubling_all_reduce(everyone,
                                {reinterpret_cast<char*>(slowest.data()), sizeof(slowest)},
                                {c10::ScalarType::Double, ReduceOp::max});
  if (nodes.count() == 1) slowest[2] = slowest[0], slowest[3] = slowest[1];
  const auto link = [](double latency, double per_byte) {
    return layout::Link{latency, per_byte > 0 ? 1 / per_byte : 0};
  };
  return {link(slowest[0], slowest[1]), link(slowest[2], slowest[3]), slowest[4]};
}

}  // namespace troika::comm
