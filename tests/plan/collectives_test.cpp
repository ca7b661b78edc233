// Collectives that are alone on a cluster take the predicted times.
#include "troika/plan/simulation/collectives.h"

#include <gmock/gmock.h>

#include <numeric>

namespace troika::plan {
namespace {

using layout::Algorithm;
using layout::Cluster;

// Returns the time of phases without other messages on the links.
double seconds_alone(const std::vector<CollectivePhase>& phases, const ClusterLinks& links) {
  SharedLinks shared(links.bandwidths());
  double now = 0;
  for (const auto& phase : phases) {
    now += phase.seconds;
    shared.begin(now, phase.uses, phase.bytes);
    const auto end = shared.next_end(now);
    shared.finish(*end);
    now = end->time;
  }
  return now;
}

Cluster cluster_of(int hosts, int devices) {
  auto cluster = Cluster::uniform(hosts, devices);
  cluster.group = {2e-6, 100e9};
  cluster.network = {1e-5, 10e9};
  return cluster;
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

constexpr double kReducePerByte = 1e-11;

double simulated(Algorithm algorithm, const ClusterLinks& links, int ranks, double bytes) {
  return seconds_alone(
      collective_phases({.algorithm = algorithm, .bytes = bytes, .reduce_per_byte = kReducePerByte},
                        first_ranks(ranks), links),
      links);
}

double predicted(Algorithm algorithm, const ClusterLinks& links, int ranks, double bytes) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(links.host(rank));
  const auto& cluster = links.cluster();
  return layout::predict(algorithm, {cluster.group, cluster.network, kReducePerByte}, nodes,
                         static_cast<size_t>(bytes));
}

TEST(Collectives, TakeThePredictedTimesOnOneHost) {
  const ClusterLinks links(cluster_of(1, 16));
  for (const auto algorithm : {Algorithm::ring, Algorithm::recursive_doubling,
                               Algorithm::rabenseifner, Algorithm::automatic}) {
    for (const int ranks : {2, 4, 8, 16}) {
      for (const double bytes : {1e3, 64e6}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(algorithm) << ", " << ranks);
        const bool chooses = algorithm == Algorithm::automatic;
        const auto one = chooses ? layout::choose({links.cluster().group, {}, kReducePerByte},
                                                  std::vector<int>(static_cast<size_t>(ranks)),
                                                  static_cast<size_t>(bytes))
                                 : algorithm;
        const double expected = predicted(one, links, ranks, bytes);
        EXPECT_NEAR(simulated(algorithm, links, ranks, bytes), expected, expected * 1e-9);
      }
    }
  }
  for (const auto algorithm :
       {Algorithm::ring, Algorithm::recursive_doubling, Algorithm::rabenseifner}) {
    for (const int ranks : {3, 5, 7, 12}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(algorithm) << ", " << ranks);
      const double expected = predicted(algorithm, links, ranks, 64e6);
      EXPECT_NEAR(simulated(algorithm, links, ranks, 64e6), expected, expected * 1e-9);
    }
  }
  const double tree = predicted(Algorithm::double_tree, links, 16, 64e6);
  EXPECT_NEAR(simulated(Algorithm::double_tree, links, 16, 64e6), tree, tree * 0.02);
}

TEST(Collectives, ShareTheNetworkOfAHost) {
  const ClusterLinks links(cluster_of(4, 4));
  // Only one message of a ring leaves a host. With all other algorithms, messages share the host's
  // port.
  const double ring = predicted(Algorithm::ring, links, 16, 64e6);
  EXPECT_NEAR(simulated(Algorithm::ring, links, 16, 64e6), ring, ring * 1e-9);
  const double levels = predicted(Algorithm::hierarchical, links, 16, 64e6);
  EXPECT_NEAR(simulated(Algorithm::hierarchical, links, 16, 64e6), levels, levels * 1e-9);
  // In the rounds with 1/2 and 1/4 of the bytes, all four ranks of a host send to another host, in
  // both directions; in the other rounds, none does.
  const double network = 2 * (64e6 / 2 + 64e6 / 4) * 4 / 10e9;
  const double inside = 2 * (64e6 / 8 + 64e6 / 16) / 100e9;
  const double latency = 4 * 1e-5 + 4 * 2e-6;
  const double reduction = 64e6 * 15 / 16 * kReducePerByte;
  EXPECT_NEAR(simulated(Algorithm::rabenseifner, links, 16, 64e6),
              network + inside + latency + reduction, 1e-9);
}

TEST(Collectives, HalvesOfAnAllReduce) {
  const ClusterLinks links(cluster_of(1, 8));
  const auto seconds = [&](CollectiveKind kind) {
    const Collective collective{
        .kind = kind, .algorithm = Algorithm::ring, .bytes = 64e6, .reduce_per_byte = 1e-11};
    return seconds_alone(collective_phases(collective, first_ranks(8), links), links);
  };
  const double scatter = seconds(CollectiveKind::reduce_scatter);
  const double gather = seconds(CollectiveKind::all_gather);
  EXPECT_NEAR(scatter - gather, 64e6 * 7 / 8 * 1e-11, 1e-12);
  EXPECT_NEAR(scatter + gather, seconds(CollectiveKind::all_reduce), 1e-12);
  EXPECT_THAT(collective_phases({.bytes = 1e6}, {3}, links), testing::IsEmpty());
}

TEST(Collectives, ProgressTogether) {
  const CollectivePhase small{1, 10, {{0, 1}}}, large{2, 20, {{0, 2}, {1, 1}}};
  const CollectivePhase merged{2, 20, {{0, 2.5}, {1, 1}}};
  EXPECT_EQ(together({{small}, {}, {large}}), std::vector<CollectivePhase>{merged});
  // One has ended after a phase.
  EXPECT_EQ(together({{small}, {large, small}}), (std::vector<CollectivePhase>{merged, small}));
}

TEST(ClusterLinks, AreNamedByPortAndLevel) {
  auto cluster = Cluster::parse(
      "[links.host]\nlatency = 3e-6\nbandwidth = 4e10\n[[devices]]\nhost = \"a\"\ncount = 2\n"
      "[[devices]]\nhost = \"a\"\ngroup = 1\n[[devices]]\nhost = \"b\"\n",
      "cluster.toml");
  const ClusterLinks links(cluster);
  const auto names = links.names();
  const auto crossed = [&](int from, int to) {
    std::vector<std::string> all;
    for (const auto& use : links.path(from, to).uses) {
      all.push_back(names[static_cast<size_t>(use.link)]);
    }
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(crossed(0, 1), (Names{"device of rank 0, group, out", "device of rank 1, group, in"}));
  EXPECT_EQ(crossed(1, 2), (Names{"group 0 of a, host, out", "group 1 of a, host, in"}));
  EXPECT_EQ(crossed(2, 3), (Names{"host a, network, out", "host b, network, in"}));
  EXPECT_EQ(crossed(2, 2), Names{});
  EXPECT_EQ(links.path(1, 2).latency, 3e-6);
  EXPECT_EQ(links.bandwidths()[static_cast<size_t>(links.path(1, 2).uses[0].link)], 4e10);
  EXPECT_EQ(links.bandwidths()[0], kUnlimited);
  EXPECT_EQ(names.size(), links.bandwidths().size());
}

// Each host sends (M - 1)/M of the bytes, as hierarchical all-reduces do in each direction.
TEST(Collectives, ShardsMoveByLevels) {
  const ClusterLinks links(cluster_of(3, 4));
  for (const auto kind : {CollectiveKind::reduce_scatter, CollectiveKind::all_gather}) {
    const auto phases = collective_phases({.kind = kind, .bytes = 1.2e9}, first_ranks(12), links);
    ASSERT_EQ(phases.size(), 2u);
    EXPECT_NEAR(seconds_alone(phases, links),
                3 * 2e-6 + 3 * 1.2e9 / 4 / 100e9 + 1e-5 + 1.2e9 * 2 / 3 / 10e9, 1e-9);
  }
  // The host with one rank gets the blocks of the other host's three ranks.
  auto uneven = cluster_of(1, 3);
  uneven.hosts.push_back("other");
  uneven.devices.push_back({.host = 1});
  const ClusterLinks other(uneven);
  const auto phases =
      collective_phases({.kind = CollectiveKind::all_gather, .bytes = 4e9}, first_ranks(4), other);
  EXPECT_NEAR(seconds_alone(phases, other), 1e-5 + 3e9 / 10e9 + 2 * 2e-6 + 2 * 4e9 / 3 / 100e9,
              1e-9);
}

}  // namespace
}  // namespace troika::plan
