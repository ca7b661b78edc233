#include "troika/layout/buckets.h"

#include <gmock/gmock.h>

namespace troika::layout {
namespace {

using testing::ElementsAre;

TEST(Buckets, CloseWithTheItemThatReachesTheLimit) {
  const std::vector<BucketItem> items{{10}, {10}, {10}, {40}, {10}, {10}};
  const std::vector<size_t> order{5, 4, 3, 2, 1, 0};
  EXPECT_THAT(assign_buckets(items, order, 15, 30),
              ElementsAre(ElementsAre(5, 4), ElementsAre(3), ElementsAre(2, 1, 0)));
  EXPECT_THAT(assign_buckets(items, order, 0, 0), testing::SizeIs(6)) << "one each";
}

TEST(Buckets, HoldItemsOfOneKind) {
  const std::vector<BucketItem> items{{10, 1}, {10, 2}, {10, 1}, {10, 2}, {10, 1}};
  EXPECT_THAT(assign_buckets(items, std::vector<size_t>{0, 1, 2, 3, 4}, 10, 20),
              ElementsAre(ElementsAre(0), ElementsAre(1, 3), ElementsAre(2, 4)))
      << "the limit of the first bucket holds for that alone";
}

TEST(Buckets, ArePaddedToEqualBlocksOfWholePieces) {
  EXPECT_EQ(padded_count(1, 3, 1), 48);
  EXPECT_EQ(padded_count(48, 3, 1), 48);
  EXPECT_EQ(padded_count(49, 3, 1), 96);
  // Pieces of 24 elements: blocks are multiples of lcm(16, 24).
  EXPECT_EQ(padded_count(100, 2, 24), 192);
  EXPECT_EQ(padded_count(20, 2, 24), 32) << "too small for a piece";
  EXPECT_EQ(item_offset(10, 30, 24), 24);
  EXPECT_EQ(item_offset(10, 23, 24), 10) << "too small for a piece";
  EXPECT_EQ(item_offset(48, 24, 24), 48);
}

}  // namespace
}  // namespace troika::layout
