// The reuse of blocks of received messages.
#include "troika/comm/shm/block_pool.h"

#include <gtest/gtest.h>

#include "troika/comm/shm/cells.h"

namespace troika::comm::shm {
namespace {

constexpr size_t kSize = size_t{128} << 10;

Arena::Piece piece(Ref ref, size_t bytes = kSize) {
  return {nullptr, ref, bytes};
}

TEST(BlockPool, ReusesTheOldestBlockOnceEnoughAreKept) {
  BlockPool pool;
  constexpr size_t kEnough = BlockPool::kRotatedBytes / kSize;
  for (size_t i = 1; i < kEnough; ++i) {
    ASSERT_TRUE(pool.keep(piece(i)));
    ASSERT_FALSE(pool.take(kSize));
  }
  ASSERT_TRUE(pool.keep(piece(kEnough)));
  EXPECT_EQ(pool.take(kSize)->ref, 1u);
  EXPECT_FALSE(pool.take(kSize));
  ASSERT_TRUE(pool.keep(piece(1)));
  EXPECT_EQ(pool.take(kSize)->ref, 2u);
}

TEST(BlockPool, ReusesABlockForSmallMessagesAtOnce) {
  BlockPool pool;
  constexpr size_t kSmall = 4096;
  static_assert(kSmall <= Cells::kBytes);
  ASSERT_TRUE(pool.keep(piece(1, kSmall)));
  EXPECT_FALSE(pool.take(2 * kSmall));
  EXPECT_EQ(pool.take(kSmall)->ref, 1u);
}

TEST(BlockPool, KeepsLimitedBytesAndThenReusesWhatItHas) {
  BlockPool pool;
  EXPECT_FALSE(pool.keep(piece(1, 2 * BlockPool::kLargestBlock)));
  ASSERT_TRUE(pool.keep(piece(1)));
  size_t bytes = kSize;
  while (pool.keep(piece(2, 2 * kSize))) bytes += 2 * kSize;
  EXPECT_LE(bytes, BlockPool::kMostBytes);
  EXPECT_GT(bytes + 2 * kSize, BlockPool::kMostBytes);
  ASSERT_TRUE(pool.keep(piece(3)));
  EXPECT_EQ(pool.take(kSize)->ref, 1u);
  EXPECT_EQ(pool.take_all().size(), (bytes - kSize) / (2 * kSize) + 1);
  EXPECT_FALSE(pool.take(2 * kSize));
}

}  // namespace
}  // namespace troika::comm::shm
