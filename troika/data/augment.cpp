#include "troika/data/augment.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/random.h"

namespace troika::data {

AugmentationDraw draw_augmentation(const Augmentation& augmentation, uint64_t seed) {
  Random random(seed);
  const auto shift = [&] {
    const auto padding = augmentation.crop_padding;
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * padding + 1))) - padding;
  };
  AugmentationDraw draw;
  draw.dy = shift();
  draw.dx = shift();
  draw.mirrored = augmentation.mirror && random.below(2) == 1;
  return draw;
}

Normalisation::Normalisation(const std::vector<double>& mean,
                             const std::vector<double>& deviation) {
  TROIKA_CHECK(mean.size() == deviation.size(), "a mean and a deviation for each channel");
  for (size_t c = 0; c < mean.size(); ++c) {
    scale.push_back(static_cast<float>(1.0 / (255.0 * deviation[c])));
    offset.push_back(static_cast<float>(-mean[c] / deviation[c]));
  }
}

void write_image(const ImageShape& shape, const AugmentationDraw& draw,
                 const Normalisation& normalisation, const uint8_t* pixels, float* output) {
  const auto [channels, height, width] = shape;
  // Columns [first, last) of the crop lie inside the image. Mirroring only reverses the writes, so
  // reads stay contiguous and the compiler can vectorise each loop.
  const int64_t first = std::clamp<int64_t>(-draw.dx, 0, width);
  const int64_t last = std::clamp<int64_t>(width - draw.dx, first, width);
  const int64_t inside = last - first;
  for (int64_t c = 0; c < channels; ++c) {
    const float scale = normalisation.scale[static_cast<size_t>(c)];
    const float black = normalisation.offset[static_cast<size_t>(c)];
    for (int64_t y = 0; y < height; ++y, output += width) {
      const int64_t row = y + draw.dy;
      if (row < 0 || row >= height) {
        std::fill_n(output, width, black);
        continue;
      }
      const uint8_t* source = pixels + c * shape.plane() + row * width + first + draw.dx;
      if (draw.mirrored) {
        std::fill_n(output, width - last, black);
        float* target = output + width - first - 1;
        for (int64_t x = 0; x < inside; ++x) target[-x] = source[x] * scale + black;
        std::fill_n(output + width - first, first, black);
      } else {
        std::fill_n(output, first, black);
        float* target = output + first;
        for (int64_t x = 0; x < inside; ++x) target[x] = source[x] * scale + black;
        std::fill_n(output + last, width - last, black);
      }
    }
  }
}

void write_mask(const ImageShape& shape, const AugmentationDraw& draw, const uint8_t* mask,
                int64_t* output) {
  for (int64_t y = 0; y < shape.height; ++y) {
    const int64_t row = y + draw.dy;
    for (int64_t x = 0; x < shape.width; ++x) {
      const int64_t column = (draw.mirrored ? shape.width - 1 - x : x) + draw.dx;
      const bool inside = row >= 0 && row < shape.height && column >= 0 && column < shape.width;
      *output++ = inside ? mask[row * shape.width + column] : 0;
    }
  }
}

}  // namespace troika::data
