// CIFAR-10 and CIFAR-100 in their binary format (https://www.cs.toronto.edu/~kriz/cifar.html): a
// record is its label bytes, then 32 x 32 pixels of red, of green, of blue.
#pragma once

#include <filesystem>

#include "troika/data/image_dataset.h"

namespace troika::data {

// Read at most the first `limit` records (0: all) of the split's files in `folder`.
//
// CIFAR-10 reads the existing files among data_batch_1.bin .. data_batch_5.bin, in this order, or
// test_batch.bin; CIFAR-100 reads train.bin or test.bin and keeps the fine labels. Throws
// Error(usage) naming a file that is missing, too short or has a label out of range.
Images read_cifar10(const std::filesystem::path& folder, Split split, int64_t limit = 0);
Images read_cifar100(const std::filesystem::path& folder, Split split, int64_t limit = 0);

// Statistics of the training pixels, and the customary augmentation: padding by 4 pixels, random
// crop, and mirror.
Normalisation cifar10_normalisation();
Normalisation cifar100_normalisation();
inline constexpr Augmentation kCifarAugmentation{.crop_padding = 4, .mirror = true};

}  // namespace troika::data
