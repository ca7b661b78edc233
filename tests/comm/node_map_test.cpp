#include "troika/comm/world/node_map.h"

#include <gtest/gtest.h>

namespace troika::comm {
namespace {

using Crowded = std::vector<bool>;

TEST(NodeMap, NumbersNodesByFirstAppearance) {
  const auto map = map_nodes({{"b", {0}}, {"a", {0}}, {"b", {1}}, {"c", {0}}});
  EXPECT_EQ(map.nodes, (std::vector<int>{0, 1, 0, 2}));
  EXPECT_EQ(map.crowded, Crowded(3, false));
}

TEST(NodeMap, CountsTheProcessorsThatTheRanksOfANodeMayUseTogether) {
  EXPECT_EQ(map_nodes({{"a", {0}}, {"a", {1}}, {"a", {2}}}).crowded, Crowded{false});
  EXPECT_EQ(map_nodes({{"a", {3}}, {"a", {3}}}).crowded, Crowded{true});
  EXPECT_EQ(map_nodes({{"a", {0, 1}}, {"a", {0, 1}}, {"a", {0, 1}}}).crowded, Crowded{true});
  EXPECT_EQ(map_nodes({{"a", {0}}, {"b", {0}}}).crowded, Crowded(2, false));
  EXPECT_EQ(map_nodes({{"a", {0}}, {"b", {0}}, {"b", {0}}}).crowded, (Crowded{false, true}));
}

TEST(NodeMap, DoesNotCallANodeWithUnknownProcessorsCrowded) {
  EXPECT_EQ(map_nodes({{"a", {}}, {"a", {0}}, {"a", {0}}}).crowded, Crowded{false});
}

TEST(NodeMap, SurvivesItsText) {
  const auto map = map_nodes({{"a", {0}}, {"b", {0}}, {"b", {0}}, {"a", {1}}});
  const auto again = NodeMap::from_text(map.text());
  EXPECT_EQ(again.nodes, map.nodes);
  EXPECT_EQ(again.crowded, map.crowded);
}

}  // namespace
}  // namespace troika::comm
