#include "troika/layout/all_reduce.h"

#include <gmock/gmock.h>

#include <vector>

namespace troika::layout {
namespace {

// As users would choose: few messages for small data, few bytes for large data, and few bytes over
// slow links.
TEST(AllReduce, TheChoiceFollowsTheLinks) {
  const Links even{{10e-6, 1e9}, {10e-6, 1e9}, 1e-10};
  const std::vector<int> one_node(8, 0);
  EXPECT_EQ(choose(even, one_node, 64), Algorithm::recursive_doubling);
  EXPECT_THAT(choose(even, one_node, 64 << 20),
              testing::AnyOf(Algorithm::rabenseifner, Algorithm::ring));
  const std::vector<int> seven(7, 0);
  EXPECT_EQ(choose(even, seven, 64 << 20), Algorithm::ring);
  const Links slow_between{{1e-6, 1e10}, {50e-6, 1e8}, 1e-10};
  const std::vector<int> interleaved{0, 1, 0, 1, 0, 1, 0, 1};
  EXPECT_EQ(choose(slow_between, interleaved, 64 << 20), Algorithm::hierarchical);
}

// The formulas: the ring's time is 2(n-1) messages of S/n and (n-1)/n S reduced.
TEST(AllReduce, PredictedTimesFollowTheModel) {
  const Links links{{1e-3, 1e6}, {}, 1e-7};
  const std::vector<int> nodes(4, 0);
  EXPECT_NEAR(predict(Algorithm::ring, links, nodes, 4000),
              6 * 1e-3 + 2 * 3 * 1000 * 1e-6 + 3 * 1000 * 1e-7, 1e-12);
  EXPECT_NEAR(predict(Algorithm::recursive_doubling, links, nodes, 4000),
              2 * (1e-3 + 4000 * 1e-6 + 4000 * 1e-7), 1e-12);
  EXPECT_NEAR(predict(Algorithm::rabenseifner, links, nodes, 4000),
              4 * 1e-3 + 2 * 3 * 1000 * 1e-6 + 3 * 1000 * 1e-7, 1e-12);
  // A ring of two inside, and one exchange of halves between nodes, over a link that two share.
  const Links by_level{{1e-3, 1e6}, {1e-2, 1e5}, 1e-7};
  EXPECT_NEAR(predict(Algorithm::hierarchical, by_level, std::vector{0, 0, 1, 1}, 4000),
              2 * (1e-3 + 2000 * 1e-6) + 2000 * 1e-7 + 1e-2 + 2000 * 2e-5 + 2000 * 1e-7, 1e-12);
}

TEST(AllReduce, OverALinkOfUnknownBandwidthIsLatencyAlone) {
  const Link link{.latency = 2e-3};
  EXPECT_EQ(link.seconds(1e9), 2e-3);
  const Links links{link, link, 0};
  EXPECT_NEAR(predict(Algorithm::ring, links, std::vector{0, 0, 1}, 1 << 30), 4 * 2e-3, 1e-12);
}

}  // namespace
}  // namespace troika::layout
