// The parts that peers reduce, for unequal links.
#include "troika/swarm/shares.h"

#include <gmock/gmock.h>

#include <cmath>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/layout/summation.h"
#include "troika/swarm/simplex.h"

namespace troika::swarm {
namespace {

using testing::ElementsAre;
using Rates = std::vector<std::optional<double>>;

std::vector<size_t> parts(size_t count, const Rates& rates, size_t least = 0) {
  return part_sizes(count, balanced_shares(rates).fractions, least);
}

// The times of an averaging of one byte, for any fractions.
double time_of(const Rates& rates, const std::vector<double>& fractions) {
  double most = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    if (*rates[i] == 0) continue;
    const double bytes = 1 + (static_cast<double>(rates.size()) - 2) * fractions[i];
    most = std::max(most, bytes / *rates[i]);
  }
  return most;
}

TEST(Shares, VectorsOfHivemind) {
  EXPECT_THAT(parts(60, {.55, .44, .40}, 10), ElementsAre(41, 19, 0));
  EXPECT_THAT(parts(60, {.32, .55, .44}, 10), ElementsAre(0, 40, 20));
  EXPECT_THAT(parts(2, {.55, .2, .44}, 10), ElementsAre(1, 0, 1));
  EXPECT_THAT(parts(1, {.55, .2, .44}, 10), ElementsAre(1, 0, 0));
  EXPECT_THAT(parts(100, {{}, {}}), ElementsAre(50, 50));
  EXPECT_THAT(parts(100, {0, 0, 0, {}, {}}), ElementsAre(0, 0, 0, 50, 50));
  EXPECT_THAT(parts(7, {3}), ElementsAre(7));
  EXPECT_THAT(parts(0, {1, 2, 3}), ElementsAre(0, 0, 0));
  EXPECT_THAT(
      [] {
        parts(100, {0, 0, 0});
      },
      testing::ThrowsMessage<Error>(testing::HasSubstr("only zeros")));
  EXPECT_THAT(
      [] {
        parts(100, {1, -1});
      },
      testing::ThrowsMessage<Error>(testing::HasSubstr("bandwidth")));
}

TEST(Shares, NoOtherFractionsAreFaster) {
  Random random(1);
  for (int trial = 0; trial < 50; ++trial) {
    Rates rates(3 + random.below(6));
    for (auto& rate : rates) rate = random.below(5) == 0 ? 0 : random.uniform(10, 200);
    rates[0] = 50;
    const auto best = balanced_shares(rates);
    double sum = 0;
    for (const double fraction : best.fractions) sum += fraction;
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_LE(time_of(rates, best.fractions), best.seconds_per_byte * (1 + 1e-9));
    for (int other = 0; other < 20; ++other) {
      auto fractions = best.fractions;
      double all = 0;
      for (size_t i = 0; i < rates.size(); ++i) {
        if (*rates[i] > 0) fractions[i] = std::max(0.0, fractions[i] + random.uniform(-.1, .1));
        all += fractions[i];
      }
      for (auto& fraction : fractions) fraction /= all;
      EXPECT_GE(time_of(rates, fractions), best.seconds_per_byte * (1 - 1e-9));
    }
  }
}

TEST(Simplex, KnownProgrammes) {
  // Dantzig's: max 3x + 5y, x <= 4, 2y <= 12, 3x + 2y <= 18.
  const auto optimum = maximize({{3, 5}, {{{{0, 1}}, 4}, {{{1, 2}}, 12}, {{{0, 3}, {1, 2}}, 18}}});
  EXPECT_NEAR(optimum.value, 36, 1e-12);
  EXPECT_THAT(optimum.x, ElementsAre(testing::DoubleNear(2, 1e-12), testing::DoubleNear(6, 1e-12)));
  // Beale's, on which the rule of the largest gain alone never ends.
  const auto cycling = maximize({{.75, -150, .02, -6},
                                 {{{{0, .25}, {1, -60}, {2, -1. / 25}, {3, 9}}, 0},
                                  {{{0, .5}, {1, -90}, {2, -1. / 50}, {3, 3}}, 0},
                                  {{{2, 1}}, 1}}});
  EXPECT_NEAR(cycling.value, .05, 1e-12);
  EXPECT_THAT(
      [] {
        maximize({{1, 1}, {{{{0, 1}}, 1}}});
      },
      testing::ThrowsMessage<Error>(testing::HasSubstr("no maximum")));
  EXPECT_THAT(
      [] {
        maximize({{1}, {{{{0, 1}}, -1}}});
      },
      testing::ThrowsMessage<Error>(testing::HasSubstr("bound")));
}

TEST(Flows, EqualTheOptimumOfSummationServers) {
  for (const auto& [workers, spares] : std::vector<std::pair<size_t, size_t>>{
           {2, 0}, {3, 0}, {4, 0}, {2, 1}, {3, 1}, {2, 2}, {3, 3}, {4, 2}}) {
    std::vector<FlowPeer> peers(workers, {.up = 1, .down = 1});
    peers.resize(workers + spares, {.up = 1, .down = 1, .computes = false});
    const auto split = layout::split_sums(static_cast<int>(workers), static_cast<int>(spares));
    EXPECT_NEAR(optimal_flows(peers).rate, 1 / split.seconds_per_byte, 1e-9)
        << workers << " " << spares;
  }
}

TEST(Flows, EqualTheClosedFormForPeersThatAllReduce) {
  Random random(2);
  for (int trial = 0; trial < 8; ++trial) {
    std::vector<FlowPeer> peers;
    Rates rates;
    for (size_t i = 0; i < 3 + static_cast<size_t>(trial) % 4; ++i) {
      const double rate = random.uniform(1e6, 25e6);
      peers.push_back({.up = rate, .down = rate});
      rates.emplace_back(rate);
    }
    const auto flows = optimal_flows(peers);
    const auto closed = balanced_shares(rates);
    EXPECT_NEAR(flows.rate * closed.seconds_per_byte, 1, 1e-9);
    EXPECT_NEAR(1 / time_of(rates, flows.fractions()) / flows.rate, 1, 1e-6);
  }
}

TEST(Flows, ClientsReduceNothingAndComputationLimits) {
  std::vector<FlowPeer> peers(4, {.up = 1, .down = 1});
  peers[3].reduces = false;
  const auto flows = optimal_flows(peers);
  EXPECT_EQ(flows.fractions()[3], 0);
  EXPECT_GT(flows.rate, .5);
  EXPECT_LT(flows.rate, optimal_flows(std::vector<FlowPeer>(4, {.up = 1, .down = 1})).rate);
  EXPECT_NEAR(optimal_flows(peers, .25).rate, .25, 1e-12);
  EXPECT_THAT([] { optimal_flows({}); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("0 peers")));
}

}  // namespace
}  // namespace troika::swarm
