// Fair rates of flows over shared links, against rates computed by hand.
#include "troika/plan/simulation/shared_links.h"

#include <gmock/gmock.h>

#include "troika/base/random.h"

namespace troika::plan {
namespace {

using Flow = SharedLinks::Flow;

TEST(SharedLinks, TwoFlowsShareALink) {
  SharedLinks links({100.0});
  const Flow one = links.begin(0, {{0, 1}}, 100);
  EXPECT_EQ(links.rate(0, one), 100);
  const Flow other = links.begin(0.5, {{0, 1}}, 100);
  EXPECT_EQ(links.rate(0.5, one), 50);
  EXPECT_EQ(links.rate(0.5, other), 50);
  // The first flow has 50 bytes left.
  auto end = links.next_end(0.5);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->flow, one);
  EXPECT_DOUBLE_EQ(end->time, 1.5);
  links.finish(*end);
  // The other flow has 50 bytes left, and the link alone.
  end = links.next_end(end->time);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->flow, other);
  EXPECT_DOUBLE_EQ(end->time, 2.0);
  links.finish(*end);
  EXPECT_FALSE(links.next_end(2));
  EXPECT_EQ(links.traffic(3)[0].bytes, 200);
  EXPECT_DOUBLE_EQ(links.traffic(3)[0].busy_seconds, 2);
}

TEST(SharedLinks, AThirdFlowJoins) {
  SharedLinks links({90.0});
  const Flow a = links.begin(0, {{0, 1}}, 90);
  const Flow b = links.begin(0, {{0, 1}}, 180);
  EXPECT_EQ(links.rate(0, a), 45);
  const Flow c = links.begin(1, {{0, 1}}, 30);
  EXPECT_EQ(links.rate(1, a), 30);
  EXPECT_EQ(links.rate(1, b), 30);
  // At 1 they have 45, 135 and 30 bytes left.
  auto end = links.next_end(1);
  EXPECT_EQ(end->flow, c);
  EXPECT_DOUBLE_EQ(end->time, 2);
  links.finish(*end);
  end = links.next_end(2);
  EXPECT_EQ(end->flow, a);
  EXPECT_NEAR(end->time, 2 + 15.0 / 45, 1e-12);
  links.finish(*end);
  EXPECT_EQ(links.rate(end->time, b), 90);
  end = links.next_end(end->time);
  EXPECT_NEAR(end->time, 2 + 15.0 / 45 + 90.0 / 90, 1e-12);
}

// A flow that is limited by another link leaves the rest of the bandwidth to the others.
TEST(SharedLinks, FlowsHaveDifferentBottlenecks) {
  SharedLinks links({10.0, 100.0, 60.0});
  const Flow narrow = links.begin(0, {{0, 1}, {1, 1}}, 1000);
  const Flow wide = links.begin(0, {{1, 1}}, 1000);
  const Flow both = links.begin(0, {{1, 1}, {2, 1}}, 1000);
  EXPECT_EQ(links.rate(0, narrow), 10);
  EXPECT_EQ(links.rate(0, wide), 45);
  EXPECT_EQ(links.rate(0, both), 45);
  const Flow last = links.begin(0, {{2, 1}}, 1000);
  EXPECT_EQ(links.rate(0, both), 30);
  EXPECT_EQ(links.rate(0, last), 30);
  EXPECT_EQ(links.rate(0, wide), 60);
}

// Messages of a collective progress together: its rate is that of its slowest message.
TEST(SharedLinks, WeightsCountMessagesOfOneFlow) {
  SharedLinks links({80.0, 80.0});
  const Flow ring = links.begin(0, {{0, 3}, {1, 1}}, 100);
  const Flow message = links.begin(0, {{0, 1}}, 100);
  const Flow other = links.begin(0, {{1, 1}}, 100);
  EXPECT_EQ(links.rate(0, ring), 20);
  EXPECT_EQ(links.rate(0, message), 20);
  EXPECT_EQ(links.rate(0, other), 60);
  links.finish({1, other});
  EXPECT_EQ(links.traffic(1)[0].bytes, 80);
  EXPECT_EQ(links.traffic(1)[0].busy_seconds, 1);
}

TEST(SharedLinks, UnlimitedLinksAndEmptyFlowsTakeNoTime) {
  SharedLinks links({kUnlimited, 10.0});
  const Flow free = links.begin(3, {{0, 1}}, 1e12);
  EXPECT_EQ(links.next_end(3)->time, 3);
  EXPECT_EQ(links.next_end(3)->flow, free);
  links.finish(*links.next_end(3));
  const Flow empty = links.begin(3, {{1, 1}}, 0);
  EXPECT_EQ(links.next_end(3)->flow, empty);
  EXPECT_EQ(links.next_end(3)->time, 3);
  links.finish(*links.next_end(3));
  // A flow that reuses the number of an ended flow.
  const Flow next = links.begin(4, {{0, 1}, {1, 2}}, 10);
  EXPECT_EQ(links.next_end(4)->flow, next);
  EXPECT_EQ(links.next_end(4)->time, 6);
}

// Max-min fairness: every flow has a full link on which no other flow is faster (Bertsekas and
// Gallager, section 6.5.2).
TEST(SharedLinks, RandomFlowsAreMaxMinFair) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> bandwidths;
    for (int i = 0; i < 6; ++i) bandwidths.push_back(random.uniform(1, 10));
    SharedLinks links(bandwidths);
    std::vector<std::pair<Flow, std::vector<LinkUse>>> flows;
    for (int f = 0; f < 8; ++f) {
      std::vector<LinkUse> uses;
      for (int i = 0; i < 6; ++i) {
        if (random.below(3) == 0) uses.push_back({i, 1.0 + static_cast<double>(random.below(3))});
      }
      if (uses.empty()) uses.push_back({0, 1});
      flows.emplace_back(links.begin(0, uses, 100), uses);
    }
    std::vector<double> load(6, 0), fastest(6, 0);
    for (const auto& [flow, uses] : flows) {
      for (const auto& use : uses) {
        const auto i = static_cast<size_t>(use.link);
        load[i] += use.weight * links.rate(0, flow);
        fastest[i] = std::max(fastest[i], links.rate(0, flow));
      }
    }
    for (size_t i = 0; i < 6; ++i) EXPECT_LE(load[i], bandwidths[i] * (1 + 1e-12));
    for (const auto& [flow, uses] : flows) {
      EXPECT_TRUE(std::ranges::any_of(uses,
                                      [&](const LinkUse& use) {
                                        const auto i = static_cast<size_t>(use.link);
                                        return load[i] > bandwidths[i] * (1 - 1e-12) &&
                                               links.rate(0, flow) > fastest[i] * (1 - 1e-12);
                                      }))
          << "round " << round;
    }
  }
}

}  // namespace
}  // namespace troika::plan
