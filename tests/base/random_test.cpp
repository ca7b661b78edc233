#include "troika/base/random.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace troika {
namespace {

TEST(Random, IsSplitMix64) {
  // First outputs for seed 1234567, as published with the reference implementation.
  Random random(1234567);
  EXPECT_EQ(random(), 6457827717110365317u);
  EXPECT_EQ(random(), 3203168211198807973u);
  EXPECT_EQ(random(), 9817491932198370423u);
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  Random random(7);
  double sum = 0;
  double squares = 0;
  double uniform = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
    uniform += random.uniform();
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.01);
}

TEST(Random, BelowCoversItsRangeAndNoMore) {
  Random random(3);
  std::vector<int> seen(5);
  for (int i = 0; i < 1000; ++i) ++seen.at(random.below(5));
  EXPECT_THAT(seen, testing::Each(testing::Gt(100)));
}

TEST(Permutation, IsOneAndDependsOnTheSeedAlone) {
  auto order = permutation(1000, 42);
  EXPECT_EQ(order, permutation(1000, 42));
  EXPECT_NE(order, permutation(1000, 43));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_TRUE(permutation(0, 1).empty());
}

}  // namespace
}  // namespace troika
