// From stored bytes to a network's input in one pass: random crop, mirror and normalisation fused.
#pragma once

#include <cstdint>
#include <vector>

namespace troika::data {

// Bytes of one image are [channels, height, width].
struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t plane() const { return height * width; }
  int64_t bytes() const { return channels * plane(); }
  bool operator==(const ImageShape&) const = default;
};

// Augmentation of a training image: pad by `crop_padding` black pixels on each side and crop
// back to size at random, and mirror left to right half of the time (the augmentation of He et al.
// 2015, section 4.2, for CIFAR).
struct Augmentation {
  int64_t crop_padding = 0;
  bool mirror = false;
};

// One draw of it: output pixel (y, x) shows input pixel (y + dy, x + dx), then mirrored.
struct Placement {
  int64_t dy = 0;
  int64_t dx = 0;
  bool mirrored = false;
};

Placement draw_placement(const Augmentation& augmentation, uint64_t seed);

// Per channel: output = byte * scale + offset.
struct Normalisation {
  // From mean and standard deviation of pixels in 0 .. 1, a pair for each channel.
  Normalisation(const std::vector<double>& mean, const std::vector<double>& deviation);

  std::vector<float> scale;
  std::vector<float> offset;
};

// Writes shape.bytes() floats to `output`. Pixels from outside the image are black before
// normalisation, as in torchvision's RandomCrop.
void write_image(const ImageShape& shape, const Placement& placement,
                 const Normalisation& normalisation, const uint8_t* pixels, float* output);

}  // namespace troika::data
