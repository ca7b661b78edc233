#include "troika/data/captions.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <bit>
#include <numeric>
#include <vector>

#include "troika/base/random.h"

namespace troika::data {
namespace {

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

Batch videos(Split split, uint64_t seed, int64_t count, int64_t frames = 16) {
  return Captions(split, {.seed = seed, .frames = frames, .count = count}).load(first(count), {});
}

TEST(Captions, AreTheSameBytesOnEveryMachine) {
  const auto hash = [](Split split) {
    const auto batch = videos(split, 42, 20);
    uint64_t value = 0;
    for (int64_t i = 0; i < batch.inputs.numel(); ++i) {
      value = mix(value, std::bit_cast<uint32_t>(batch.inputs.data_ptr<float>()[i]));
    }
    for (int64_t i = 0; i < batch.targets.numel(); ++i) {
      value = mix(value, static_cast<uint64_t>(batch.targets.data_ptr<int64_t>()[i]));
    }
    return value;
  };
  EXPECT_EQ(hash(Split::train), 974382520821615685u);
  EXPECT_EQ(hash(Split::validation), 12793247208349722501u);
}

TEST(Captions, DependOnSeedSplitAndIndexAlone) {
  const Captions all(Split::train, {.seed = 1, .count = 30});
  const auto some = all.load(std::vector<int64_t>{7, 3}, 5);
  const auto batch = all.load(first(30), {});
  for (const auto& [name, tensor] : some.tensors()) {
    EXPECT_TRUE(tensor[0].equal(batch[name][7])) << name;
    EXPECT_TRUE(tensor[1].equal(batch[name][3])) << name;
  }
  EXPECT_FALSE(batch.inputs.equal(videos(Split::train, 2, 30).inputs));
  EXPECT_FALSE(batch.inputs.equal(videos(Split::validation, 1, 30).inputs));
}

// A caption has one to three pairs of a thing and an act, with "then" between them, and an end.
// Inputs are shifted by one place.
TEST(Captions, TellOfEventsThatDiffer) {
  const auto batch = videos(Split::train, 0, 300);
  std::vector<int> lengths(4);
  for (int64_t i = 0; i < 300; ++i) {
    const auto* caption = batch["captions"][i].data_ptr<int64_t>();
    const auto* target = batch.targets[i].data_ptr<int64_t>();
    EXPECT_EQ(caption[0], kBegin);
    int64_t place = 0;
    size_t events = 0;
    std::pair<int64_t, int64_t> before;
    while (true) {
      const std::pair event(target[place], target[place + 1]);
      EXPECT_TRUE(event.first >= kFirstThing && event.first < kFirstAct) << i;
      EXPECT_TRUE(event.second >= kFirstAct && event.second < kWords) << i;
      EXPECT_NE(event, before) << i;
      before = event;
      ++events;
      place += 2;
      if (target[place] == kEnd) break;
      ASSERT_EQ(target[place++], kThen) << i;
    }
    ASSERT_LE(events, 3u);
    ++lengths[events];
    for (int64_t k = 0; k < place; ++k) EXPECT_EQ(caption[k + 1], target[k]) << i;
    for (int64_t k = place + 1; k < kCaptionLength; ++k) {
      EXPECT_EQ(target[k], -100) << i;
      EXPECT_EQ(caption[k], kNoWord) << i;
    }
  }
  EXPECT_THAT(lengths, testing::ElementsAre(0, testing::Gt(60), testing::Gt(60), testing::Gt(60)));
}

// A linear classifier on the first frame predicts the first thing, and the last thing only by
// chance, because all captions begin with what is seen first.
TEST(Captions, TellWhatTheFramesShowInTheirOrder) {
  const auto training = videos(Split::train, 0, 2000, 6),
             validation = videos(Split::validation, 0, 500, 6);
  const auto accuracy = [&](int64_t frame) {
    const auto first_things = at::one_hot(training.targets.select(1, 0), kWords).to(at::kFloat);
    const auto weights =
        std::get<0>(at::linalg_lstsq(training.inputs.select(1, frame), first_things));
    const auto found = validation.inputs.select(1, frame).matmul(weights).argmax(1);
    return found.eq(validation.targets.select(1, 0)).to(at::kDouble).mean().item<double>();
  };
  EXPECT_GT(accuracy(0), 0.9);
  EXPECT_LT(accuracy(5), 0.6);  // right for videos of one event
}

}  // namespace
}  // namespace troika::data
