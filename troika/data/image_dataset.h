// Images with labels or masks, held in memory as bytes.
#pragma once

#include "troika/data/augment.h"
#include "troika/data/dataset.h"

namespace troika::data {

struct Images {
  ImageShape shape = {};
  int64_t classes = 0;
  std::vector<uint8_t> pixels = {};  // [n, channels, height, width]
  std::vector<uint8_t> labels = {};  // [n], each < classes
  // [n, height, width], each < classes; if not empty, the targets instead of the labels
  std::vector<uint8_t> masks = {};

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

class ImageDataset final : public Dataset {
 public:
  ImageDataset(Images images, Normalisation normalisation, Augmentation augmentation = {});

  int64_t size() const override { return images_.size(); }
  Batch load(std::span<const int64_t> indices,
             std::optional<uint64_t> augmentation_seed) const override;
  int64_t num_classes() const override { return images_.classes; }
  std::vector<int64_t> input_shape() const override;
  std::vector<int64_t> target_shape() const override;

  const Images& images() const { return images_; }

 private:
  Images images_;
  Normalisation normalisation_;
  Augmentation augmentation_;
};

}  // namespace troika::data
