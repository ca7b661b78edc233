// Conversion of stored bytes to a network's input in one pass: random crop, mirror and
// normalisation.
#pragma once

#include <cstdint>
#include <vector>

namespace troika::data {

// An image's bytes are [channels, height, width].
struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t plane() const { return height * width; }
  int64_t bytes() const { return channels * plane(); }
  bool operator==(const ImageShape&) const = default;
};

// Augmentation of a training image: pads by `crop_padding` black pixels on each side, crops back to
// size at random, and mirrors left to right with probability 1/2 (the augmentation of He et al.
// 2015, section 4.2, for CIFAR).
struct Augmentation {
  int64_t crop_padding = 0;
  bool mirror = false;
};

// A random draw of an augmentation: output pixel (y, x) shows input pixel (y + dy, x + dx); then
// the image is mirrored.
struct AugmentationDraw {
  int64_t dy = 0;
  int64_t dx = 0;
  bool mirrored = false;
};

AugmentationDraw draw_augmentation(const Augmentation& augmentation, uint64_t seed);

// For each channel: output = byte * scale + offset.
struct Normalisation {
  // `mean` and `deviation` are those of pixels in 0 .. 1, one value per channel.
  Normalisation(const std::vector<double>& mean, const std::vector<double>& deviation);

  std::vector<float> scale;
  std::vector<float> offset;
};

// Writes shape.bytes() floats to `output`. Pixels outside the image are black before normalisation,
// as in torchvision's RandomCrop.
void write_image(const ImageShape& shape, const AugmentationDraw& draw,
                 const Normalisation& normalisation, const uint8_t* pixels, float* output);
// Writes the shape.plane() classes of a mask [height, width] by the same draw. Pixels
// outside the image are of class 0.
void write_mask(const ImageShape& shape, const AugmentationDraw& draw, const uint8_t* mask,
                int64_t* output);

}  // namespace troika::data
