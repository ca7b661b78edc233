#include "troika/data/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/support/errors.h"
#include "troika/base/random.h"

namespace troika::data {
namespace {

constexpr int64_t kSize = 1000;
constexpr int64_t kGlobal = 84;  // divides among 1, 2, 3, 4 and 7 ranks
constexpr uint64_t kSeed = 5;

Sampler sampler(int rank = 0, int ranks = 1, int64_t global = kGlobal, int64_t size = kSize) {
  return Sampler({.size = size, .global_batch = global, .seed = kSeed, .ranks = {rank, ranks}});
}

std::vector<int64_t> joined(const std::vector<IndexBatch>& batches) {
  std::vector<int64_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

// The global batches that `ranks` ranks train on together from `state`.
std::vector<IndexBatch> together(int ranks, const SamplerState& state) {
  std::vector<IndexBatch> global(static_cast<size_t>(sampler().steps_left(state)));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto share = sampler(rank, ranks).batches(state);
    EXPECT_EQ(share.size(), global.size());
    for (size_t k = 0; k < global.size(); ++k) {
      EXPECT_EQ(share[k].size(), static_cast<size_t>(kGlobal / ranks));
      global[k].insert(global[k].end(), share[k].begin(), share[k].end());
    }
  }
  return global;
}

class OverRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sampler, OverRanks, testing::Values(1, 2, 3, 4, 7));

TEST_P(OverRanks, TogetherAreTheBatchesOfOneProcess) {
  const SamplerState state{.epoch = 2, .position = 0};
  EXPECT_EQ(together(GetParam(), state), sampler().batches(state));
}

TEST_P(OverRanks, SeeEverySampleOncePerEpochButTheRemainder) {
  auto seen = joined(together(GetParam(), {.epoch = 0, .position = 0}));
  EXPECT_EQ(seen.size(), static_cast<size_t>(kSize / kGlobal * kGlobal));
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  EXPECT_GE(seen.front(), 0);
  EXPECT_LT(seen.back(), kSize);
}

TEST_P(OverRanks, ResumeWhereAnotherNumberOfRanksStopped) {
  auto all = joined(sampler().batches({.epoch = 1, .position = 0}));
  auto state = sampler(0, 4).after({.epoch = 1, .position = 0}, 5);
  EXPECT_EQ(state, (SamplerState{.epoch = 1, .position = 5 * kGlobal}));
  all.erase(all.begin(), all.begin() + 5 * kGlobal);
  EXPECT_EQ(joined(together(GetParam(), state)), all);
}

TEST_P(OverRanks, EvaluateEachSampleExactlyOnce) {
  const int ranks = GetParam();
  for (const int64_t size : {0, 1, 3, 6, 7, 100, 101}) {
    std::vector<int64_t> all;
    std::vector<size_t> shares;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto batches = evaluation_batches(size, 8, {rank, ranks});
      for (const auto& batch : batches) {
        EXPECT_GE(batch.size(), 1u);
        EXPECT_LE(batch.size(), 8u);
      }
      const auto mine = joined(batches);
      shares.push_back(mine.size());
      all.insert(all.end(), mine.begin(), mine.end());
    }
    std::vector<int64_t> expected(static_cast<size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
    const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
    EXPECT_LE(*most - *least, 1u);
  }
}

TEST(Sampler, OrderIsThePermutationOfSeedAndEpoch) {
  auto expected = permutation(kSize, mix(kSeed, 3));
  expected.resize(kSize / kGlobal * kGlobal);
  EXPECT_EQ(joined(sampler().batches({.epoch = 3, .position = 0})), expected);
  EXPECT_NE(joined(sampler().batches({.epoch = 4, .position = 0})), expected);
}

TEST(Sampler, ResumesAtAnySampleWithAnyBatch) {
  const auto order = permutation(kSize, mix(kSeed, 0));
  const auto batches = sampler(0, 1, 100).batches({.epoch = 0, .position = 333});
  ASSERT_EQ(batches.size(), 6u);
  EXPECT_THAT(joined(batches), testing::ElementsAreArray(order.begin() + 333, order.begin() + 933));
}

TEST(Sampler, GoesOnToTheNextEpochWhenNoWholeBatchIsLeft) {
  const auto one = sampler();
  EXPECT_EQ(one.after({.epoch = 0, .position = 10 * kGlobal}),
            (SamplerState{.epoch = 1, .position = 0}));
  EXPECT_EQ(one.after({.epoch = 0, .position = kSize - kGlobal + 1}, 0),
            (SamplerState{.epoch = 1, .position = 0}));
  EXPECT_EQ(one.after({.epoch = 0, .position = kSize - kGlobal}, 0),
            (SamplerState{.epoch = 0, .position = kSize - kGlobal}));
  EXPECT_EQ(one.steps_left({.epoch = 0, .position = kSize}), 0);
  EXPECT_THROW(one.after({.epoch = 0, .position = 10 * kGlobal}, 2), CheckError);
}

TEST(Sampler, AugmentationDiffersByEpochAndNotByRank) {
  EXPECT_NE(sampler().augmentation_seed(0), sampler().augmentation_seed(1));
  EXPECT_NE(sampler().augmentation_seed(0), mix(kSeed, 0)) << "that is the seed of the order";
  EXPECT_EQ(sampler(0, 4).augmentation_seed(7), sampler(3, 4).augmentation_seed(7));
}

TEST(Sampler, RefusesWhatCannotBeShared) {
  EXPECT_ERROR(sampler(0, 4, 3), ErrorKind::usage,
               "[data] global batch is smaller than the number of ranks; got 3, expected >= 4");
  EXPECT_ERROR(
      sampler(0, 4, 10), ErrorKind::usage,
      "[data] global batch does not divide among the ranks; got 10, expected a multiple of 4");
  EXPECT_ERROR(sampler(0, 1, 256, 100), ErrorKind::usage,
               "[data] global batch is larger than the training set; got 256, expected <= 100");
  EXPECT_ERROR(sampler(0, 1, 0), ErrorKind::usage,
               "[data] global batch is smaller than the number of ranks; got 0, expected >= 1");
  EXPECT_ERROR(evaluation_batches(10, 0, {}), ErrorKind::usage,
               "[data] evaluation batch; got 0, expected >= 1");
  EXPECT_THROW(sampler(4, 4), CheckError);
}

TEST(Sampler, RefusesAStateOfAnotherDataSet) {
  EXPECT_ERROR(sampler().batches({.epoch = 0, .position = 2000}), ErrorKind::usage,
               "[data] position of the sampler in its epoch; got 2000, expected 0 to 1000, the "
               "size of the training set");
  EXPECT_ERROR(sampler().batches({.epoch = -1, .position = 0}), ErrorKind::usage,
               "[data] epoch of the sampler; got -1, expected >= 0");
}

}  // namespace
}  // namespace troika::data
