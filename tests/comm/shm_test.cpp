// The shared memory of back end shm: its size is bounded by the amount in use.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/comm/shm_ranks.h"
#include "tests/support/errors.h"

namespace troika::comm::shm {
namespace {

void fill_tensors(Ranks& ranks, int64_t count) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < count; ++i) {
    tensors.push_back(ranks.arena(0)->tensor((40 + i) << 20, at::kByte).fill_(1));
  }
  EXPECT_GE(shared_memory().resident, static_cast<size_t>(count) * 40 * kMiB);
}

TEST(Arena, LargeTensorsGiveTheirPagesBack) {
  Ranks ranks(1);
  fill_tensors(ranks, 4);
  EXPECT_LE(shared_memory().resident, Arena::kKeptBytes + kMiB);
}

TEST(Arena, PagesThatAreTakenAgainInEachStepAreKept) {
  Ranks ranks(1);
  for (int step = 0; step < 3; ++step) fill_tensors(ranks, 4);
  EXPECT_GE(shared_memory().resident, 160 * kMiB);
  EXPECT_LE(shared_memory().resident, 170 * kMiB);
}

TEST(Arena, TensorsOfEverySizeInTurnTakeTheMemoryOfTheLargest) {
  Ranks ranks(1);
  for (int64_t kilobytes = 1; kilobytes < 4000; kilobytes += 7) {
    ranks.arena(0)->tensor(kilobytes << 10, at::kByte).fill_(1);
  }
  EXPECT_LE(shared_memory().resident, 10 * kMiB);
}

TEST(Arena, MoreThanAReferenceCanNameIsRefused) {
  Ranks ranks(1);
  EXPECT_ERROR(
      ranks.arena(0)->tensor((int64_t{1} << 40) + 1, at::kByte), ErrorKind::usage,
      "[comm] a segment of shared memory is too large; got 1099511627777 bytes, expected at "
      "most 1099511627776");
}

TEST(Arena, ThousandsOfSmallTensorsShareAFewSegments) {
  Ranks ranks(1);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 5000; ++i) {
    tensors.push_back(ranks.arena(0)->tensor(3, at::kInt).fill_(i));
  }
  EXPECT_LT(shared_memory().segments, 10u);
  for (int i = 0; i < 5000; ++i)
    ASSERT_TRUE(tensors[static_cast<size_t>(i)].eq(i).all().item<bool>());
}

TEST(BuddyAllocator, GivesDisjointAlignedBlocksAndJoinsThemAgain) {
  constexpr Ref kBase = Ref{1} << kOffsetBits;
  BuddyAllocator buddies;
  buddies.add(kBase, kMiB);
  std::mt19937 random(3);
  std::map<Ref, size_t> taken;  // bytes asked for
  size_t bytes_taken = 0;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 3 != 0) {
      const size_t bytes = 1 + random() % (size_t{1} << (8 + random() % 9));
      const auto ref = buddies.take(bytes);
      if (!ref) continue;
      const size_t block = BuddyAllocator::block_size(bytes);
      EXPECT_GE(block, bytes);
      EXPECT_EQ(*ref % block, 0u);
      EXPECT_LE(*ref + block, kBase + kMiB);
      const auto after = taken.lower_bound(*ref);
      if (after != taken.end()) {
        EXPECT_LE(*ref + block, after->first);
      }
      if (after != taken.begin()) {
        const auto before = std::prev(after);
        EXPECT_LE(before->first + BuddyAllocator::block_size(before->second), *ref);
      }
      taken[*ref] = bytes;
      bytes_taken += bytes;
    } else if (!taken.empty()) {
      const auto chosen = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      buddies.give_back(chosen->first, chosen->second);
      bytes_taken -= chosen->second;
      taken.erase(chosen);
    }
    ASSERT_EQ(buddies.taken(), bytes_taken);
    ASSERT_LE(buddies.resident_free() + bytes_taken, kMiB);
  }
  for (const auto& [ref, bytes] : taken) buddies.give_back(ref, bytes);
  EXPECT_GT(buddies.resident_free(), 0u);
  const auto evicted = buddies.evict(4096);
  ASSERT_TRUE(evicted);
  EXPECT_EQ(evicted->ref, kBase);
  EXPECT_EQ(evicted->bytes, kMiB);
  EXPECT_EQ(buddies.resident_free(), 0u);
  EXPECT_FALSE(buddies.evict(4096));
  EXPECT_EQ(buddies.take(kMiB), kBase);
  EXPECT_EQ(buddies.take(1), std::nullopt);
}

}  // namespace
}  // namespace troika::comm::shm
