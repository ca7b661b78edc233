#include "troika/data/shapes.h"

#include <gmock/gmock.h>

#include <array>
#include <numbers>

#include "troika/base/random.h"
#include "troika/data/outline.h"
#include "troika/data/sampler.h"

namespace troika::data {
namespace {

std::vector<uint8_t> image(const Images& images, int64_t index) {
  const auto begin = images.pixels.begin() + index * images.shape.bytes();
  return {begin, begin + images.shape.bytes()};
}

TEST(Shapes, AreTheSameBytesOnEveryMachine) {
  const auto hash = [](Split split) {
    uint64_t value = 0;
    for (const uint8_t pixel : render_shapes(42, split, 20).pixels) value = mix(value, pixel);
    return value;
  };
  EXPECT_EQ(hash(Split::train), 5357311010088563894u);
  EXPECT_EQ(hash(Split::validation), 2286039091627609613u);
}

TEST(Shapes, DependOnSeedSplitAndIndexAlone) {
  const auto images = render_shapes(1, Split::train, 30);
  const auto fewer = render_shapes(1, Split::train, 10);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(image(images, i), image(fewer, i));
  EXPECT_NE(image(images, 0), image(images, 10)) << "of the same class";
  EXPECT_NE(images.pixels, render_shapes(2, Split::train, 30).pixels);
  EXPECT_NE(images.pixels, render_shapes(1, Split::validation, 30).pixels);
}

TEST(Shapes, HaveTheirClassesInBalance) {
  const auto images = render_shapes(0, Split::validation, 200);
  EXPECT_EQ(images.classes, 10);
  std::vector<int> count(10);
  for (const uint8_t label : images.labels) ++count.at(label);
  EXPECT_THAT(count, testing::Each(20));
}

TEST(ShapeMasks, AreWhereTheObjectsAre) {
  const auto images = render_shape_masks(3, Split::train, 100);
  EXPECT_EQ(images.pixels, render_shapes(3, Split::train, 100).pixels);
  EXPECT_EQ(images.classes, 11);
  const int64_t plane = images.shape.plane();
  ASSERT_EQ(static_cast<int64_t>(images.masks.size()), 100 * plane);
  for (int64_t i = 0; i < 100; ++i) {
    // The object is brighter than its background, except for strokes and noise.
    std::array<double, 2> light{}, pixels{};
    for (int64_t k = 0; k < plane; ++k) {
      const auto mask = images.masks[static_cast<size_t>(i * plane + k)];
      ASSERT_TRUE(mask == 0 || mask == images.labels[static_cast<size_t>(i)] + 1);
      pixels.at(mask > 0) += 1;
      for (int64_t c = 0; c < 3; ++c) {
        light.at(mask > 0) +=
            images.pixels[static_cast<size_t>(i * images.shape.bytes() + c * plane + k)] / 3.0;
      }
    }
    EXPECT_GT(pixels[1], 30) << i;
    EXPECT_LT(pixels[1], 600) << i;
    EXPECT_GT(light[1] / pixels[1], light[0] / pixels[0] + 30) << i;
  }
}

// Images whose pixels are their masks.
TEST(ShapeMasks, AreCroppedAndMirroredWithTheirImages) {
  Images images{.shape = {.channels = 1, .height = 5, .width = 7}, .classes = 256};
  for (uint8_t i = 0; i < 4 * 35; ++i) images.pixels.push_back(i + 1);
  images.masks = images.pixels;
  images.labels.resize(4);
  const ImageDataset dataset(std::move(images), {{0}, {1.0 / 255}},
                             {.crop_padding = 2, .mirror = true});
  EXPECT_EQ(dataset.target_shape(), (std::vector<int64_t>{5, 7}));
  const std::vector<int64_t> all{0, 1, 2, 3};
  const auto still = dataset.load(all, {});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto batch = dataset.load(all, seed);
    EXPECT_TRUE(batch.inputs.squeeze(1).round().to(at::kLong).equal(batch.targets)) << seed;
    EXPECT_FALSE(batch.targets.equal(still.targets)) << seed;
  }
}

// Accuracy on `validation` of softmax regression trained on `training` by Adam.
double linear_accuracy(const ImageDataset& training, const ImageDataset& validation) {
  torch::manual_seed(0);
  torch::nn::Linear model(training.images().shape.bytes(), training.num_classes());
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  const Sampler sampler({.size = training.size(), .global_batch = 100, .seed = 0});
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    for (const auto& indices : sampler.batches({.epoch = epoch, .position = 0})) {
      const auto batch = training.load(indices, {});
      optimizer.zero_grad();
      torch::nll_loss(model(batch.inputs.flatten(1)).log_softmax(1), batch.targets).backward();
      optimizer.step();
    }
  }
  int64_t right = 0;
  for (const auto& indices : evaluation_batches(validation.size(), 500, {})) {
    const auto batch = validation.load(indices, {});
    right += model(batch.inputs.flatten(1)).argmax(1).eq(batch.targets).sum().item<int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(validation.size());
}

TEST(Shapes, CannotBeSolvedByALinearClassifier) {
  const auto rendered = [](Split split, int64_t count) { return render_shapes(0, split, count); };
  const ImageDataset training(rendered(Split::train, 4000), shapes_normalisation());
  const ImageDataset validation(rendered(Split::validation, 1000), shapes_normalisation());
  EXPECT_LT(linear_accuracy(training, validation), 0.5);

  // The same classifier learns a linear task: a bright row whose height depends on the class.
  const auto marked = [](Images images) {
    for (int64_t i = 0; i < images.size(); ++i) {
      const auto row = i * images.shape.bytes() + images.labels[i] * 3 * images.shape.width;
      std::fill_n(images.pixels.begin() + row, 3 * images.shape.width, uint8_t{255});
    }
    return ImageDataset(std::move(images), shapes_normalisation());
  };
  EXPECT_GT(linear_accuracy(marked(rendered(Split::train, 4000)),
                            marked(rendered(Split::validation, 1000))),
            0.9);
}

// Returns the area that `outline` covers, in pixels.
double area(const Outline& outline, int side = 32) {
  std::vector<float> coverage(static_cast<size_t>(side * side));
  cover(outline, side, coverage.data());
  double sum = 0;
  for (const float part : coverage) {
    EXPECT_GE(part, -1e-6);
    EXPECT_LE(part, 1 + 1e-6);
    sum += part;
  }
  return sum;
}

Outline square(double half) {
  return {{{-half, -half}, {half, -half}, {half, half}, {-half, half}}};
}

TEST(Outline, CoversItsArea) {
  const Point centre{15.3, 16.1};
  for (const double angle : {0.0, 0.3, std::numbers::pi / 4}) {
    EXPECT_NEAR(
        area(place(square(1), {.angle = angle, .scale_x = 5, .scale_y = 4, .centre = centre})), 80,
        1.5);
  }
  Outline frame = square(8);
  frame.push_back(square(4).front());
  EXPECT_NEAR(area(place(frame, {.angle = 0.5, .centre = centre})), 256 - 64, 2);
}

TEST(Outline, IsCutAtTheEdgesOfThePicture) {
  EXPECT_NEAR(area(place(square(4), {.centre = {0, 16}})), 32, 1e-4);
  EXPECT_NEAR(area(place(square(4), {.centre = {32, 32}})), 16, 1e-4);
  EXPECT_NEAR(area(place(square(4), {.centre = {-10, 16}})), 0, 1e-6);
  EXPECT_NEAR(area(place(square(4), {.centre = {16, 99}})), 0, 1e-6);
  EXPECT_NEAR(area(place(square(99), {.centre = {16, 16}})), 32 * 32, 1e-2);
}

TEST(Outline, SoftensEdgesWithinAPixel) {
  std::vector<float> coverage(16);
  cover({{{0.5, 1}, {2.25, 1}, {2.25, 2.5}, {0.5, 2.5}}}, 4, coverage.data());
  EXPECT_THAT(coverage,
              testing::ElementsAre(0, 0, 0, 0, 0.5, 1, 0.25, 0, 0.25, 0.5, 0.125, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace troika::data
