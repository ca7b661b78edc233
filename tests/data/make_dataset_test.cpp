// Data sets by name: defaults, augmentation, and options that do not fit.
#include "troika/data/make_dataset.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <vector>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::data {
namespace {

TEST(MakeDataset, AugmentsTrainingAloneAndOnlyIfAsked) {
  const auto augments = [](const DataOptions& options, Split split) {
    const auto dataset = make_dataset(options, split);
    std::vector<int64_t> all(20);
    std::iota(all.begin(), all.end(), 0);
    return !torch::equal(dataset->load(all, 1).inputs, dataset->load(all, {}).inputs);
  };
  const DataOptions options{.train_samples = 20, .validation_samples = 20};
  EXPECT_TRUE(augments(options, Split::train));
  EXPECT_FALSE(augments(options, Split::validation));
  EXPECT_FALSE(augments({.train_samples = 20, .augment = false}, Split::train));
}

TEST(MakeDataset, ShapesHaveADefaultSize) {
  EXPECT_EQ(make_dataset({}, Split::train)->size(), 10'000);
  EXPECT_EQ(make_dataset({}, Split::validation)->size(), 2'000);
  EXPECT_EQ(count_samples({}, Split::train), 10'000);
  EXPECT_EQ(count_samples({}, Split::validation), 2'000);
  for (const std::string name : {"shape_masks", "captions"}) {
    EXPECT_EQ(count_samples({.name = name}, Split::train), 10'000) << name;
    EXPECT_EQ(make_dataset({.name = name}, Split::validation)->size(), 2'000) << name;
  }
}

TEST(MakeDataset, SamplesAreCountedAsItMakesThem) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "text", std::string(1000, 'x'));
  const DataOptions text{.name = "text", .files = {(folder / "text").string()}, .context = 16};
  for (const auto split : {Split::train, Split::validation}) {
    const DataOptions shapes{.train_samples = 3, .validation_samples = 2};
    DataOptions masks = shapes, captions = shapes;
    masks.name = "shape_masks";
    captions.name = "captions";
    for (const auto& options : {shapes, masks, captions, text}) {
      EXPECT_EQ(count_samples(options, split), make_dataset(options, split)->size());
    }
  }
}

TEST(MakeDataset, SaysTheShapesOfItsSamples) {
  const auto expect_shapes = [](const DataOptions& options) {
    const auto dataset = make_dataset(options, Split::train);
    const auto batch = dataset->load(std::vector<int64_t>{1, 0}, {});
    EXPECT_EQ(batch.inputs.sizes().slice(1), at::IntArrayRef(dataset->input_shape()));
    EXPECT_EQ(batch.targets.sizes().slice(1), at::IntArrayRef(dataset->target_shape()));
    EXPECT_LT(batch.targets.max().item<int64_t>(), dataset->num_classes());
  };
  const TemporaryFolder folder;
  write_file_atomically(folder / "text", std::string(1000, 'x'));
  expect_shapes({.train_samples = 3});
  expect_shapes({.name = "shape_masks", .train_samples = 3});
  expect_shapes({.name = "captions", .train_samples = 3, .frames = 9, .feature_width = 5});
  expect_shapes({.name = "text", .files = {(folder / "text").string()}, .context = 16});
}

TEST(MakeDataset, RefusesWhatItDoesNotKnow) {
  const auto make = [](const DataOptions& options) { make_dataset(options, Split::train); };
  EXPECT_ERROR(make({.name = "cifar"}), ErrorKind::usage,
               "[data] unknown data set; got cifar, expected one of shapes, shape_masks, "
               "captions, cifar10, cifar100, idx, text (did you mean cifar10?)");
  EXPECT_ERROR(make({.train_samples = -1}), ErrorKind::usage,
               "[data] training samples; got -1, expected >= 1, or 0 for all");
  EXPECT_ERROR(make({.name = "captions", .frames = 5}), ErrorKind::usage,
               "[data] frames of captions; got 5, expected >= 6");
  EXPECT_ERROR(make({.name = "captions", .feature_width = 0}), ErrorKind::usage,
               "[data] feature_width of captions; got 0, expected >= 1");
  EXPECT_ERROR(make({.name = "idx"}), ErrorKind::usage,
               "[data] path of idx; got none, expected the folder with its files");
  EXPECT_ERROR(make({.name = "text"}), ErrorKind::usage,
               "[data] files of text; got none, expected at least one");
  EXPECT_ERROR(make({.path = "/data"}), ErrorKind::usage,
               "[data] shapes reads no folder; got path /data");
  EXPECT_ERROR(make({.name = "cifar10", .path = "/data", .files = {"a", "b"}}), ErrorKind::usage,
               "[data] cifar10 reads no list of files; got files a, b");
}

}  // namespace
}  // namespace troika::data
