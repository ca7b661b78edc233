// Generated images of objects that differ only in shape, a data set that needs no download.
//
// Each 32 x 32 picture shows one of ten objects (disc, ring, square, frame, triangle, cross, star,
// crescent, arrow, corner) at a random place, size, stretch and angle within 45 degrees of upright.
// The object has a random colour, on a shaded background that is darker, in front of thin strokes
// and under noise. Single pixels carry no information about the class, so a linear classifier does
// little better than guessing, while a ResNet-20 is right for 99 % after training on 20 000
// samples.
#pragma once

#include "troika/data/image_dataset.h"

namespace troika::data {

// Image i is a pure function of (seed, split, i) and shows object i modulo 10, so any run of
// consecutive images has balanced classes. Takes about 20 microseconds per image.
Images render_shapes(uint64_t seed, Split split, int64_t count);

// The same images, and a mask of each: class 0 where the background is, and object + 1 where at
// least half of a pixel is covered by the object.
Images render_shape_masks(uint64_t seed, Split split, int64_t count);

Normalisation shapes_normalisation();
inline constexpr Augmentation kShapesAugmentation{.crop_padding = 4, .mirror = true};

// Default numbers of images.
inline constexpr int64_t kShapesTrain = 10'000;
inline constexpr int64_t kShapesValidation = 2'000;

}  // namespace troika::data
