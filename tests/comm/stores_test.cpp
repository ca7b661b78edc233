// The choice of store instructions for data that ranks write into shared memory.
#include "troika/comm/shm/stores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace troika::comm::shm {
namespace {

TEST(Give, WritesTheBytesAndNoOthersFromAndToAnyPlace) {
  std::vector<char> source(1000);
  std::iota(source.begin(), source.end(), 1);
  for (const bool streams : {false, true}) {
    for (const size_t from : {0, 1, 17, 64}) {
      for (const size_t into : {0, 3, 16, 63}) {
        for (const size_t bytes : {0, 1, 15, 64, 100, 127, 128, 777}) {
          std::vector<char> wanted(1000, 'x'), got(1000, 'x');
          std::copy_n(source.begin() + static_cast<long>(from), bytes,
                      wanted.begin() + static_cast<long>(into));
          give(got.data() + into, source.data() + from, bytes, streams);
          ASSERT_EQ(got, wanted) << streams << " " << from << " " << into << " " << bytes;
        }
      }
    }
  }
}

// Makes calls with these costs for the two kinds of stores, and returns which calls used streaming
// stores.
std::vector<bool> make_calls(StoreTrial& trial, int calls, double cached, double streaming) {
  std::vector<bool> result;
  for (int i = 0; i < calls; ++i) {
    const bool streams = trial.streams();
    result.push_back(streams);
    trial.add(streams, streams ? streaming : cached);
  }
  return result;
}

int64_t streamed(const std::vector<bool>& calls) {
  return std::count(calls.begin(), calls.end(), true);
}

TEST(StoreTrial, TakesTheFasterWayAndNoticesWhenTheOtherOneBecomesIt) {
  StoreTrial trial;
  const auto shared_cache = make_calls(trial, 5120, 1, 2);
  EXPECT_GE(streamed(shared_cache), 30) << "three calls of 512 are tries";
  EXPECT_LE(streamed(shared_cache), 50) << "and some more at first";
  EXPECT_FALSE(shared_cache[250]);
  // The ranks move to processors that share no cache.
  const auto apart = make_calls(trial, 5120, 8, 2);
  EXPECT_GE(streamed(apart), 5120 - 512 - 40) << "noticed by the next trial";
  EXPECT_TRUE(apart[600]);
  const auto together = make_calls(trial, 5120, 1, 2);
  EXPECT_FALSE(together[600]);
  // If the costs are similar, the choice does not change.
  const auto alike = make_calls(trial, 5120, 2, 1.9);
  EXPECT_LE(streamed(alike), 33);
}

TEST(StoreTrial, TakesNoNoticeOfTheFirstCalls) {
  StoreTrial trial;
  make_calls(trial, 2, 50, 50);  // memory that was never used before
  make_calls(trial, 1, 3, 2);    // and one call that something else has held up
  EXPECT_EQ(streamed(make_calls(trial, 29, 1, 2)), 3) << "three tries";
}

// As three ranks make calls: small ones, and others in between.
TEST(StoreChoice, AllRanksWriteAlikeAndCallsOfEachKindHaveTheirOwn) {
  std::vector<StoreChoice> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(/*decides=*/rank == 0);
  int64_t small = 0, large = 0;
  for (int i = 0; i < 4000; ++i) {
    const bool is_small = i % 3 != 0;
    for (auto& rank : ranks) rank.start(0, is_small ? 4096 : 1 << 20, is_small);
    for (auto& rank : ranks) {
      ASSERT_EQ(rank.small_streams(), ranks[0].small_streams()) << i;
      rank.take(ranks[0].notice());
      ASSERT_EQ(rank.streams(), ranks[0].streams()) << i;
    }
    for (auto& rank : ranks) rank.finish();
    small += is_small && ranks[0].small_streams();
    large += !is_small && ranks[0].streams();
  }
  EXPECT_GE(small, 3) << "each way was tried";
  EXPECT_GE(large, 3);
}

TEST(StoreChoice, TinyCallsAreNotTimed) {
  StoreChoice choice(/*decides=*/true);
  for (int i = 0; i < 2000; ++i) {
    choice.start(0, 64, /*is_small=*/true);
    EXPECT_FALSE(choice.small_streams());
    EXPECT_EQ(choice.notice(), 0u);
    choice.take(choice.notice());
    choice.finish();
  }
}

}  // namespace
}  // namespace troika::comm::shm
