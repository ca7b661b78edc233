#include "troika/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <numeric>
#include <set>

#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/data/image_dataset.h"

namespace troika::data {
namespace {

using Batches = std::vector<std::vector<int64_t>>;

ImageDataset images(int64_t count, const Augmentation& augmentation) {
  const ImageShape shape{.channels = 2, .height = 6, .width = 5};
  Images out{.shape = shape, .classes = 256};
  Random random(1);
  for (int64_t i = 0; i < count; ++i) out.labels.push_back(static_cast<uint8_t>(i));
  for (int64_t i = 0; i < count * shape.bytes(); ++i) {
    out.pixels.push_back(static_cast<uint8_t>(1 + random.below(255)));
  }
  return {std::move(out), {{0, 0}, {1, 1}}, augmentation};
}

// Batches 0 .. n-1 of one sample each, its number the target.
Batches singles(int64_t n) {
  Batches batches;
  for (int64_t i = 0; i < n; ++i) batches.push_back({i});
  return batches;
}

// A data set that calls a function of the test in every load.
class Scripted final : public Dataset {
 public:
  explicit Scripted(std::function<void(int64_t)> script) : script_(std::move(script)) {}
  int64_t size() const override { return 1000; }
  Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    script_(indices.front());
    return {torch::empty({1}), torch::full({1}, indices.front(), torch::kLong)};
  }
  int64_t num_classes() const override { return 1; }
  std::vector<int64_t> input_shape() const override { return {1}; }

 private:
  std::function<void(int64_t)> script_;
};

TEST(Loader, GivesTheSameBatchesForAnyNumberOfWorkers) {
  const auto dataset = images(100, {.crop_padding = 2, .mirror = true});
  Batches batches;
  const auto order = permutation(100, 3);
  for (size_t i = 0; i < 100; i += 7) {
    batches.emplace_back(order.begin() + i, order.begin() + std::min<size_t>(i + 7, 100));
  }
  for (const int workers : {0, 1, 3}) {
    Loader loader(dataset, batches, 9, {.workers = workers, .prefetch = 2});
    EXPECT_EQ(loader.size(), 15);
    for (const auto& indices : batches) {
      const auto expected = dataset.load(indices, 9);
      const auto batch = loader.next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(batch->size(), static_cast<int64_t>(indices.size()));
      EXPECT_TRUE(torch::equal(batch->inputs, expected.inputs));
      EXPECT_TRUE(torch::equal(batch->targets, expected.targets));
    }
    EXPECT_FALSE(loader.next().has_value());
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(Loader, LoadsAheadNoFurtherThanAsked) {
  std::atomic<int64_t> furthest = -1;
  std::latch third(1);
  const Scripted dataset([&](int64_t i) {
    furthest = std::max(furthest.load(), i);
    if (i == 2) third.count_down();
  });
  Loader loader(dataset, singles(50), {}, {.workers = 1, .prefetch = 3});
  third.wait();  // it does load ahead
  for (int64_t taken = 0; taken < 50; ++taken) {
    EXPECT_LE(furthest, taken + 2);
    EXPECT_EQ(loader.next()->targets.item<int64_t>(), taken);
  }
}

// If waking a worker takes for ever, the caller makes all loads; if it takes no time, workers make
// them.
TEST(Loader, LoadsWhatIsQuickerThanAHandOverWithoutWorkers) {
  constexpr int64_t kBatches = 300;
  const auto loads_by_caller = [](std::chrono::nanoseconds hand_over) {
    std::atomic<int64_t> result = 0;
    const auto caller = std::this_thread::get_id();
    // Long enough for the caller to wait for each batch, so that workers always have room.
    const Scripted dataset([&](int64_t) {
      result += std::this_thread::get_id() == caller;
      const Stopwatch since_start;
      while (since_start.seconds() < 500e-6) {
      }
    });
    Loader loader(dataset, singles(kBatches), {}, {.prefetch = 2, .hand_over = hand_over});
    for (int64_t i = 0; i < kBatches; ++i) {
      EXPECT_EQ(loader.next()->targets.item<int64_t>(), i);
    }
    EXPECT_FALSE(loader.next().has_value());
    return result.load();
  };
  EXPECT_EQ(loads_by_caller({}), 0);
  // Workers start no loads after the loads are known to be quick.
  EXPECT_GT(loads_by_caller(std::chrono::hours(1)), kBatches - 100);
}

TEST(Loader, ALoadThatIsSlowNowAndThenIsQuickAllTheSame) {
  constexpr int64_t kBatches = 400;
  constexpr Milliseconds kHandOver(2);
  const auto loads_by_caller = [&](int64_t slow_every) {
    std::atomic<int64_t> result = 0;
    const auto caller = std::this_thread::get_id();
    const Scripted dataset([&](int64_t index) {
      result += std::this_thread::get_id() == caller;
      const Stopwatch since_start;
      while (index % slow_every == 0 && since_start.seconds() < 0.010) {
      }
    });
    Loader loader(dataset, singles(kBatches), {}, {.prefetch = 2, .hand_over = kHandOver});
    while (loader.next()) {
    }
    return result.load();
  };
  EXPECT_GT(loads_by_caller(20), 0);
  EXPECT_EQ(loads_by_caller(4), 0) << "more than it saves";
}

TEST(Loader, CanBeDestroyedAtAnyMoment) {
  const auto dataset = images(200, {});
  for (const int workers : {0, 1, 3}) {
    for (const int64_t taken : {0, 1, 5, 199, 200}) {
      Loader loader(dataset, singles(200), {}, {.workers = workers, .prefetch = 4});
      for (int64_t i = 0; i < taken; ++i) ASSERT_TRUE(loader.next().has_value());
    }
  }
}

TEST(Loader, StopsLoadingWhenDestroyed) {
  constexpr int64_t kBatches = 10'000;
  std::atomic<int64_t> loads = 0;
  std::latch destroying(1);
  // Slow enough that the destructor has begun long before the last batch.
  const Scripted dataset([&](int64_t) {
    ++loads;
    destroying.wait();
    const Stopwatch watch;
    while (watch.seconds() < 1e-3) {
    }
  });
  {
    Loader loader(dataset, singles(kBatches), {}, {.workers = 1, .prefetch = kBatches});
    destroying.count_down();
  }
  EXPECT_LT(loads, kBatches);
}

TEST(Loader, ThrowsWhereTheBadBatchIs) {
  const Scripted dataset([](int64_t i) {
    if (i == 3) throw Error("data", ErrorKind::usage, {.what = "sample 3 is bad"});
  });
  for (const int workers : {0, 1, 3}) {
    Loader loader(dataset, singles(6), {}, {.workers = workers, .prefetch = 6});
    for (const int64_t i : {0, 1, 2}) EXPECT_EQ(loader.next()->targets.item<int64_t>(), i);
    EXPECT_ERROR(loader.next(), ErrorKind::usage, "[data] sample 3 is bad");
    for (const int64_t i : {4, 5}) EXPECT_EQ(loader.next()->targets.item<int64_t>(), i);
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(Loader, LosesPatienceWithADataSetThatHangsAndNoBatch) {
  std::latch go_on(1);
  const Scripted dataset([&](int64_t) { go_on.wait(); });
  Loader loader(dataset, singles(2), {}, {.patience = Milliseconds(5)});
  EXPECT_ERROR(loader.next(), ErrorKind::timeout,
               "[data] batch 0 of 2 is not loaded; got nothing in 5 ms (is the data on a file "
               "system that hangs?)");
  go_on.count_down();
  std::optional<Batch> batch;
  while (!batch) {
    try {
      batch = loader.next();
    } catch (const Error&) {  // the machine is busy; the batch is still to come
    }
  }
  EXPECT_EQ(batch->targets.item<int64_t>(), 0);
}

TEST(Loader, RefusesOptionsOutOfRange) {
  const auto dataset = images(1, {});
  EXPECT_ERROR(Loader(dataset, {}, {}, {.workers = -1}), ErrorKind::usage,
               "[data] loader workers; got -1, expected >= 0");
  EXPECT_ERROR(Loader(dataset, {}, {}, {.prefetch = 0}), ErrorKind::usage,
               "[data] loader prefetch; got 0, expected >= 1");
}

TEST(ImageDataset, AugmentsASampleTheSameInAnyBatch) {
  const auto dataset = images(40, {.crop_padding = 2, .mirror = true});
  std::vector<int64_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  const auto whole = dataset.load(all, 7);
  int64_t changed = 0;
  for (const int64_t i : all) {
    const std::vector<int64_t> one{i};
    EXPECT_TRUE(torch::equal(dataset.load(one, 7).inputs[0], whole.inputs[i]));
    changed += !torch::equal(dataset.load(one, 8).inputs[0], whole.inputs[i]);
  }
  EXPECT_GT(changed, 30) << "another seed draws another crop";
  EXPECT_FALSE(torch::equal(dataset.load(all, {}).inputs, whole.inputs));
  EXPECT_THROW(dataset.load(std::vector<int64_t>{40}, {}), CheckError);
  EXPECT_THROW(dataset.load(std::vector<int64_t>{-1}, {}), CheckError);
}

// Crops and mirrors with LibTorch's operators.
torch::Tensor reference(const torch::Tensor& image, const AugmentationDraw& draw, int64_t padding) {
  auto out = torch::constant_pad_nd(image, {padding, padding, padding, padding}, 0)
                 .slice(1, padding + draw.dy, padding + draw.dy + image.size(1))
                 .slice(2, padding + draw.dx, padding + draw.dx + image.size(2));
  return draw.mirrored ? out.flip({2}) : out;
}

TEST(Augment, EqualsPadSliceFlipAndNormalise) {
  const ImageShape shape{.channels = 2, .height = 4, .width = 5};
  const auto bytes = torch::arange(40, torch::kByte).reshape({2, 4, 5}) * 6;
  const Normalisation normalisation({0.25, 0.5}, {0.5, 0.125});
  const auto mean = torch::tensor({0.25, 0.5}).reshape({2, 1, 1});
  const auto deviation = torch::tensor({0.5, 0.125}).reshape({2, 1, 1});
  // Shifts beyond the image leave only black.
  for (int64_t dy = -5; dy <= 5; ++dy) {
    for (int64_t dx = -6; dx <= 6; ++dx) {
      for (const bool mirrored : {false, true}) {
        const AugmentationDraw draw{dy, dx, mirrored};
        auto got = torch::full({2, 4, 5}, 1e9F);
        write_image(shape, draw, normalisation, bytes.data_ptr<uint8_t>(), got.data_ptr<float>());
        const auto cropped = reference(bytes.to(torch::kDouble), draw, 6);
        const auto expected = (cropped / 255 - mean) / deviation;
        ASSERT_TRUE(torch::allclose(got.to(torch::kDouble), expected, 1e-5, 1e-5))
            << dy << " " << dx << " " << mirrored;
      }
    }
  }
}

TEST(Augment, DrawsEveryShiftAndBothSides) {
  std::set<int64_t> dy;
  std::set<int64_t> dx;
  int mirrored = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const auto draw = draw_augmentation({.crop_padding = 4, .mirror = true}, mix(seed));
    dy.insert(draw.dy);
    dx.insert(draw.dx);
    mirrored += draw.mirrored;
    EXPECT_FALSE(draw_augmentation({.crop_padding = 4}, mix(seed)).mirrored);
  }
  EXPECT_THAT(dy, testing::ElementsAre(-4, -3, -2, -1, 0, 1, 2, 3, 4));
  EXPECT_EQ(dx, dy);
  EXPECT_NEAR(mirrored, 500, 100);
}

}  // namespace
}  // namespace troika::data
