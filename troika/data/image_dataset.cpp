#include "troika/data/image_dataset.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/random.h"

namespace troika::data {

ImageDataset::ImageDataset(Images images, Normalisation normalisation, Augmentation augmentation)
    : images_(std::move(images)),
      normalisation_(std::move(normalisation)),
      augmentation_(augmentation) {
  TROIKA_CHECK(static_cast<int64_t>(images_.pixels.size()) == size() * images_.shape.bytes(),
               "every label has its pixels");
  TROIKA_CHECK(images_.masks.empty() ||
                   static_cast<int64_t>(images_.masks.size()) == size() * images_.shape.plane(),
               "every image has its mask");
  TROIKA_CHECK(static_cast<int64_t>(normalisation_.scale.size()) == images_.shape.channels,
               "a normalisation for each channel");
}

Batch ImageDataset::load(std::span<const int64_t> indices,
                         std::optional<uint64_t> augmentation_seed) const {
  const auto& shape = images_.shape;
  const auto count = static_cast<int64_t>(indices.size());
  std::vector<int64_t> targets = target_shape();
  targets.insert(targets.begin(), count);
  Batch batch{at::empty({count, shape.channels, shape.height, shape.width}, at::kFloat),
              at::empty(targets, at::kLong)};
  auto* output = batch.inputs.data_ptr<float>();
  auto* target = batch.targets.data_ptr<int64_t>();
  for (const int64_t index : indices) {
    TROIKA_CHECK(index >= 0 && index < size(), fmt::format("sample {} of {}", index, size()));
    AugmentationDraw draw;
    if (augmentation_seed) {
      draw =
          draw_augmentation(augmentation_, mix(*augmentation_seed, static_cast<uint64_t>(index)));
    }
    write_image(shape, draw, normalisation_, &images_.pixels[index * shape.bytes()], output);
    output += shape.bytes();
    if (images_.masks.empty()) {
      *target++ = images_.labels[index];
    } else {
      write_mask(shape, draw, &images_.masks[index * shape.plane()], target);
      target += shape.plane();
    }
  }
  return batch;
}

std::vector<int64_t> ImageDataset::input_shape() const {
  return {images_.shape.channels, images_.shape.height, images_.shape.width};
}

std::vector<int64_t> ImageDataset::target_shape() const {
  if (images_.masks.empty()) return {};
  return {images_.shape.height, images_.shape.width};
}

}  // namespace troika::data
